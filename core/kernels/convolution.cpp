// Matrix products on blocks of the unfolded x that stay in the cache and are made again in backward: a block is a part
// of the places for y, of the channels for dx, and of the taps for dW. Blocks depend on the shape only, and one result
// is always summed by one thread: over samples in ascending order for dW. x and W are saved.
// A window of one tap that meets every element in turn needs no unfolding: X is x itself.
#include "core/kernels/convolution.h"

#include <algorithm>

#include "core/kernels/gemm.h"
#include "core/kernels/reduce.h"
#include "core/kernels/rows.h"
#include "core/parallel.h"

namespace tapestry::cpu {
namespace {

using Layout = ConvolutionLayout;

// Elements of a block, and what its sides are multiples of: the widths of the register tiles divide it.
constexpr std::int64_t kBlock = 1 << 17, kSide = 96;
constexpr std::int64_t kProductsPerThread = 1 << 17;

constexpr std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// How much of `extent` a block takes whose other side is `across`: kSide or a multiple of it.
std::int64_t block_side(std::int64_t extent, std::int64_t across) {
  return std::min(extent, std::max<std::int64_t>(1, kBlock / across / kSide) * kSide);
}

bool is_pointwise(const Layout& l) {
  const auto trivial = [](const WindowAxis& axis) { return axis.size == 1 && axis.stride == 1 && axis.padding == 0; };
  return trivial(l.unfolding.window.h) && trivial(l.unfolding.window.w);
}

// Calls body(begin, end, product) on ranges of `count` blocks, each a product of about `work` multiplications. Where
// there are fewer blocks than threads, the products themselves are spread.
template <class T, class Body>
void for_each_block(std::int64_t count, std::int64_t work, Body&& body) {
  const bool few = count < num_threads();
  const std::int64_t grain = kProductsPerThread / std::max<std::int64_t>(work, 1) + 1;
  parallel_for(count, few ? count : grain,
               [&](std::int64_t begin, std::int64_t end) { body(begin, end, few ? gemm<T> : gemm_serial<T>); });
}

template <class T>
void forward(const Layout& l, const T* x, const T* weight, const T* bias, T* y) {
  const Unfolding& u = l.unfolding;
  const std::int64_t depth = l.depth(), out = l.group_out(), places = u.places();
  const std::int64_t side = block_side(places, depth), blocks = divide_up(places, side);
  const bool pointwise = is_pointwise(l);
  for_each_block<T>(l.batch * l.groups * blocks, out * depth * side, [&](auto begin, auto end, auto product) {
    Tensor scratch = pointwise ? Tensor() : workspace({depth, side}, dtype_of<T>);
    T* columns = pointwise ? nullptr : scratch.mutable_data<T>();
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t which = i / blocks, group = which % l.groups, place = i % blocks * side;
      const std::int64_t count = std::min(side, places - place);
      const T* planes = x + which * l.group_in() * u.plane();
      T* result = y + which * out * places + place;
      if (!pointwise) unfold_rows(u, planes, 0, depth, place, count, columns);
      for (std::int64_t o = 0; bias && o < out; ++o) std::fill_n(result + o * places, count, bias[group * out + o]);
      product({.m = out,
               .n = count,
               .k = depth,
               .a = weight + group * out * depth,
               .b = pointwise ? planes + place : columns,
               .c = result,
               .lda = depth,
               .ldb = pointwise ? places : count,
               .ldc = places,
               .add = bias != nullptr});
    }
  });
}

template <class T>
void backward_x(const Layout& l, const T* dy, const T* weight, bool add, T* dx) {
  const Unfolding& u = l.unfolding;
  const std::int64_t depth = l.depth(), out = l.group_out(), places = u.places(), taps = u.taps();
  const std::int64_t side = std::clamp<std::int64_t>(kBlock / (taps * places), 1, l.group_in());  // channels
  const std::int64_t blocks = divide_up(l.group_in(), side);
  const bool pointwise = is_pointwise(l);
  for_each_block<T>(l.batch * l.groups * blocks, out * side * taps * places, [&](auto begin, auto end, auto product) {
    Tensor scratch = pointwise ? Tensor() : workspace({side * taps, places}, dtype_of<T>);
    T* columns = pointwise ? nullptr : scratch.mutable_data<T>();
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t which = i / blocks, group = which % l.groups, channel = i % blocks * side;
      const std::int64_t count = std::min(side, l.group_in() - channel);
      T* planes = dx + (which * l.group_in() + channel) * u.plane();
      product({.m = count * taps,
               .n = places,
               .k = out,
               .transpose_a = true,
               .a = weight + group * out * depth + channel * taps,
               .b = dy + which * out * places,
               .c = pointwise ? planes : columns,
               .lda = depth,
               .ldb = places,
               .ldc = places,
               .add = pointwise && add});
      if (!pointwise) fold_channels(u, columns, count, add, planes);
    }
  });
}

template <class T>
void backward_weight(const Layout& l, const T* dy, const T* x, bool add, T* dweight) {
  const Unfolding& u = l.unfolding;
  const std::int64_t depth = l.depth(), out = l.group_out(), places = u.places();
  const std::int64_t side = std::min(depth, kSide), blocks = divide_up(depth, side);
  const std::int64_t run = block_side(places, side);  // places unfolded at a time
  const bool pointwise = is_pointwise(l);
  if (!add) std::fill_n(dweight, l.out_channels * depth, T(0));
  for_each_block<T>(l.groups * blocks, l.batch * out * side * places, [&](auto begin, auto end, auto product) {
    Tensor scratch = pointwise ? Tensor() : workspace({side, run}, dtype_of<T>);
    T* columns = pointwise ? nullptr : scratch.mutable_data<T>();
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t group = i / blocks, row = i % blocks * side, rows = std::min(side, depth - row);
      for (std::int64_t n = 0; n < l.batch; ++n) {
        const std::int64_t which = n * l.groups + group;
        const T* planes = x + which * l.group_in() * u.plane();
        for (std::int64_t place = 0; place < places; place += run) {
          const std::int64_t count = std::min(run, places - place);
          if (!pointwise) unfold_rows(u, planes, row, rows, place, count, columns);
          product({.m = out,
                   .n = rows,
                   .k = count,
                   .transpose_b = true,
                   .a = dy + which * out * places + place,
                   .b = pointwise ? planes + row * places + place : columns,
                   .c = dweight + group * out * depth + row,
                   .lda = places,
                   .ldb = pointwise ? places : count,
                   .ldc = depth,
                   .add = true});
        }
      }
    }
  });
}

}  // namespace

void convolution_forward(const Tensor& x, const Tensor& weight, const Tensor& bias, const Layout& l, Tensor& y) {
  visit_float("convolution", y.dtype(), [&]<class T>(TypeTag<T>) {
    forward(l, x.data<T>(), weight.data<T>(), bias ? bias.data<T>() : nullptr, y.mutable_data<T>());
  });
}

void convolution_backward(const Tensor& dy, const Tensor& x, const Tensor& weight, const Layout& l, Grad dx,
                          Grad dweight, Grad dbias) {
  visit_float("convolution", dy.dtype(), [&]<class T>(TypeTag<T>) {
    if (dx) {
      const bool add = dx.claim();
      backward_x(l, dy.data<T>(), weight.data<T>(), add, dx.data<T>());
    }
    if (dweight) {
      const bool add = dweight.claim();
      backward_weight(l, dy.data<T>(), x.data<T>(), add, dweight.data<T>());
    }
    if (dbias) {
      const bool add = dbias.claim();
      const std::int64_t o = l.out_channels;
      sum_into(dy.data<T>(), {l.batch, o, l.unfolding.places()}, {1, o, 1}, 1.0, dbias.data<T>(), add);
    }
  });
}

}  // namespace tapestry::cpu
