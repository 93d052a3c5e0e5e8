// Products run in double, so that one of floats that fits does not overflow on the way. The gradient of an element is
// the product of those before it times the product of those after it: neighbouring slices side by side, and one of
// contiguous runs as a matrix whose columns are taken alone first and then get the product of the others. Saved: x.
#include "core/kernels/prod.h"

#include "core/kernels/fold.h"
#include "core/kernels/slices.h"

namespace tapestry::cpu {

namespace {

template <class T>
struct Product {
  using Stored = T;
  using Lane = double;
  using Partial = Vectors<double, 1>;

  Partial start() const { return {simd::splat(1.0)}; }
  template <class At>
  void take(Partial& product, simd::Vec<double> x, simd::Vec<double>, At) const {
    product[0] *= x;
  }
  void join(Partial& product, const Partial& other) const { product[0] *= other[0]; }
};

constexpr std::int64_t kLanes = Slices::kNeighbours;

// Calls f(lane) for each, with a count that the compiler knows where it can.
template <class F>
void for_each_lane(std::int64_t count, F f) {
  if (count == kLanes)
    for (int lane = 0; lane < kLanes; ++lane) f(lane);
  else
    for (int lane = 0; lane < count; ++lane) f(lane);
}

// Turns the seeds, all equal, into seed times the product of all other lanes.
void times_other_lanes(const double (&product)[kLanes], double (&seed)[kLanes]) {
  double before = 1, after = 1;
  for (std::int64_t lane = 0; lane < kLanes; ++lane) {
    seed[lane] *= before;
    before *= product[lane];
  }
  for (std::int64_t lane = kLanes - 1; lane >= 0; --lane) {
    seed[lane] *= after;
    after *= product[lane];
  }
}

// The runs of a slice in steps of kLanes elements, or the elements of neighbouring slices one after another.
struct Steps {
  explicit Steps(const Slices& slices)
      : run(slices.run()),
        matrix(run > 1 || slices.width() == 1),
        per_run((run + kLanes - 1) / kLanes),
        count(slices.length() / run * per_run) {}
  std::int64_t position(std::int64_t step) const { return step / per_run * run + step % per_run * kLanes; }
  std::int64_t width(std::int64_t step) const { return std::min(kLanes, run - step % per_run * kLanes); }

  std::int64_t run;
  bool matrix;
  std::int64_t per_run, count;
};

// One block of slices; `before` has room for kLanes doubles for each of their steps.
template <class T>
void block_gradient(const Slices& slices, const Slices::Block& block, const T* dy, const T* x, T* dx, bool add,
                    double* before) {
  const Steps s(slices);
  const auto offset = [&](std::int64_t step) { return block.offset + slices.term(s.position(step)); };
  const auto count = [&](std::int64_t step) { return s.matrix ? s.width(step) : block.count; };
  double product[kLanes], after[kLanes] = {};
  std::fill_n(product, kLanes, 1.0);
  for (std::int64_t step = 0; step < s.count; ++step)
    for_each_lane(count(step), [&, row = x + offset(step), to = before + step * kLanes](int lane) {
      to[lane] = product[lane];
      product[lane] *= row[lane];
    });
  for (std::int64_t lane = 0; lane < kLanes; ++lane)
    after[lane] = s.matrix ? dy[block.first] : lane < block.count ? dy[block.first + lane] : T(0);
  if (s.matrix) times_other_lanes(product, after);
  for (std::int64_t step = s.count - 1; step >= 0; --step) {
    const std::int64_t at = offset(step);
    for_each_lane(count(step), [&, row = x + at, to = dx + at, from = before + step * kLanes](int lane) {
      const T gradient = static_cast<T>(from[lane] * after[lane]);
      to[lane] = add ? to[lane] + gradient : gradient;
      after[lane] *= row[lane];
    });
  }
}

}  // namespace

void prod_forward(const Tensor& x, const Shape& kept, Tensor& y) {
  visit_float("prod", x.dtype(), [&]<class T>(TypeTag<T>) {
    T* py = y.mutable_data<T>();
    fold(x.data<T>(), x.shape(), kept,
         fold_stage(Product<T>{}, nullptr, [=](std::int64_t i, auto total) { py[i] = static_cast<T>(total[0]); }));
  });
}

void prod_backward(const Tensor& dy, const Tensor& x, const Shape& kept, Grad dx) {
  if (!dx) return;
  visit_float("prod", x.dtype(), [&]<class T>(TypeTag<T>) {
    const bool add = dx.claim();
    if (x.numel() == 0) return;
    const T *pdy = dy.data<T>(), *px = x.data<T>();
    T* pdx = dx.data<T>();
    const Slices slices(x.shape(), kept);
    parallel_for(slices.blocks(), grain_for(slices.length() * slices.width()), [&](auto begin, auto end) {
      Tensor before = workspace({Steps(slices).count, kLanes}, DType::f64);
      for (std::int64_t i = begin; i < end; ++i)
        block_gradient(slices, slices.block(i), pdy, px, pdx, add, before.mutable_data<double>());
    });
  });
}

}  // namespace tapestry::cpu
