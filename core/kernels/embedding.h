// Rows of a table: y[i] = table[ids[i]]. Backward scatters: dtable[ids[i]] += dy[i], in order of i, so repeated ids add
// up the same way for any number of threads (each thread owns some of the columns). Rows of padding_id stay zero.
#pragma once

#include "core/kernels/kernel.h"

namespace tapestry {

// Throws for an id outside [0, rows), with the id, the range and its flat position, before anything is written.
// y has the table's type.
TAP_KERNEL_16BIT(embedding_forward, const Tensor& table, const Tensor& ids, Tensor& y)
TAP_KERNEL(embedding_backward, const Tensor& dy, const Tensor& ids, std::int64_t padding_id, Grad dtable)

}  // namespace tapestry
