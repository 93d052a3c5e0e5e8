// Elements of one axis chosen by an index: gather, index_select, scatter_add, one_hot. With x seen as [outer, n, inner]
// and the chosen as [outer, m, inner],
//   gather   y[o, i, c] = x[o, index(o, i, c), c]        scatter   x[o, index(o, i, c), c] += y[o, i, c]
// are each other's gradient. Equal indices add up in order of i, for any number of threads.
#pragma once

#include "core/kernels/kernel.h"

namespace tapestry {

struct IndexLayout {
  std::int64_t outer = 1, n = 0, m = 0, inner = 1;
  bool per_element = false;  // index is [outer, m, inner]; otherwise [m], the same for every o and c
  // Where an index is shorter than x in axes besides `axis`: its shape with that axis as 1, and x's. outer and inner
  // are the index's then, and nothing is chosen from what lies beyond. Otherwise of rank 0.
  Shape covered = {}, x = {};
  int axis = 0;

  bool partial() const { return x.rank() > 0; }
};

// All throw for an index outside [0, n), with the index, the range and its flat position, before anything is written.
// `op` is for that error.
TAP_KERNEL(gather_forward, const char* op, const Tensor& x, const Tensor& index, const IndexLayout& layout, Tensor& y)
TAP_KERNEL(gather_backward, const char* op, const Tensor& dy, const Tensor& index, const IndexLayout& layout, Grad dx)
// target += the scattered source; dsource of it is gathered.
TAP_KERNEL(scatter_add_forward, const char* op, const Tensor& source, const Tensor& index, const IndexLayout& layout,
           Tensor& target)
TAP_KERNEL(scatter_add_backward, const char* op, const Tensor& dy, const Tensor& index, const IndexLayout& layout,
           Grad dsource)
// y [..., classes] = 1 at ids[...], else 0.
TAP_KERNEL(one_hot, const Tensor& ids, Tensor& y)

}  // namespace tapestry
