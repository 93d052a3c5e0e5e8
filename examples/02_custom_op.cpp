// An op of your own, from its formula to a layer that learns through it; and what gradcheck says when it is wrong.
#include <cmath>
#include <cstdio>
#include <numeric>

#include "tapestry.h"
using namespace tapestry;

// unit(x) gives every row the length 1:  y = r x,  r = 1 / sqrt(sum(x^2) + eps)
// Differentiate, and put y back in:      dx = r (dy - c y),  c = sum(dy y)
// So backward needs y and r, not x.

// 1. The kernels. visit_float compiles a loop for float and double; parallel_rows spreads the rows over threads. A row
// stays in one thread, so its sums are taken in one order and have the same bits for any number of threads.
void unit_forward(const Tensor& x, Tensor& y, Tensor& r) {
  visit_float("unit", x.dtype(), [&]<class T>(TypeTag<T>) {
    const T* in = x.data<T>();
    T *out = y.mutable_data<T>(), *scale = r.mutable_data<T>();
    cpu::parallel_rows(x.shape().rows(), x.shape().back(), [=, n = x.shape().back()](std::int64_t row) {
      const T* v = in + row * n;
      scale[row] = 1 / std::sqrt(std::inner_product(v, v + n, v, T(1e-12)));
      for (std::int64_t i = 0; i < n; ++i) out[row * n + i] = scale[row] * v[i];
    });
  });
}
void unit_backward(const Tensor& dy, const Tensor& y, const Tensor& r, bool forget_c, Grad dx) {
  const bool add = dx.claim();  // false: nothing is there yet, assign; true: another use of x was here before, add
  visit_float("unit", dy.dtype(), [&]<class T>(TypeTag<T>) {
    const T *dout = dy.data<T>(), *out = y.data<T>(), *scale = r.data<T>();
    T* din = dx.data<T>();
    cpu::parallel_rows(dy.shape().rows(), dy.shape().back(), [=, n = dy.shape().back()](std::int64_t row) {
      const T *d = dout + row * n, *v = out + row * n, c = forget_c ? 0 : std::inner_product(d, d + n, v, T(0));
      for (std::int64_t i = 0; i < n; ++i)
        din[row * n + i] = (add ? din[row * n + i] : 0) + scale[row] * (d[i] - c * v[i]);
    });
  });
}

// 2. The op: compute, record, return. The lambda's captures are what is kept; save() notices if y is changed meanwhile.
Var unit(const Var& x, bool forget_c = false) {
  TAP_CHECK(x.shape().rank() >= 1, "unit: x must have rank 1 or more, not ", x.shape());
  Tensor y = empty_like(x.value()), r = empty({x.shape().rows()}, x.dtype());
  unit_forward(x.value(), y, r);
  auto backward = [y = save(y), r, forget_c](const Tensor& dy, Grad dx) { unit_backward(dy, y(), r, forget_c, dx); };
  return record("unit", y, backward, x);
}

// 3. A layer around it: a class scores the cosine between x and the direction learned for it, times ten.
struct CosineClassifier : Module {
  Var operator()(const Var& x) const { return 10 * matmul(unit(x), unit(directions), false, /*transpose_b=*/true); }
  void visit(Visitor& v) override { v("directions", directions); }
  Parameter directions = Parameter(tensor({1, 1, -1, 1, 1, -1}, {3, 2}));  // [classes, width]
};

int main() {
  // 4. Its test: gradcheck compares every gradient with differences of f64 values. A planted fault is named.
  const Tensor x = tensor({1, 2, -1, 0.5, 0.2, 0.9, -2, 0.3, 0.7}, {3, 3}, DType::f64);
  const GradcheckReport good = gradcheck([](const Var& v) { return unit(v); }, {x});
  const GradcheckReport bad = gradcheck([](const Var& v) { return unit(v, /*forget_c=*/true); }, {x});
  std::printf("unit: %s\n\nunit without c y: %s\n\n", good.text().c_str(), bad.text().c_str());

  // 5. Trained: to which of three directions of the plane is a point closest, however far out it lies?
  const Tensor axes = tensor({1, 0, -0.5, 0.87, -0.5, -0.87}, {3, 2});
  Tensor points = empty({300, 2});
  fill_normal(points, 0, 1, RandomKey{/*seed=*/1});
  const Tensor closest = argmax(matmul(points, axes, false, true).value(), {1});
  CosineClassifier model;
  AdamW optimizer(parameters(model));
  for (int step = 0; step <= 100; ++step) {
    Tape tape;
    const Var loss = cross_entropy(model(points), closest).loss;
    tape.backward(loss);
    optimizer.step({.lr = 0.05});
    if (step % 50 == 0) std::printf("step %3d  loss %.3f\n", step, loss.item());
  }
  const double right = mean(Var(eq(argmax(model(points).value(), {1}), closest).to(DType::f32))).item();
  std::printf("%.0f%% of the points right\n", 100 * right);
  return good && !bad && right > 0.95 ? 0 : 1;
}
