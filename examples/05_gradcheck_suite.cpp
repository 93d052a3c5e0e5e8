// A gradient-check suite of your own ops: register rows, and the program has the command line of `tapestry gradcheck`.
//   05_gradcheck_suite --list    05_gradcheck_suite --filter cube --seed 3 --junit results.xml
#include "tapestry.h"

using namespace tapestry;

// y[i] = f(x[i]); dx[i] = df(x[i]) dy[i]
template <class F, class DF>
Var pointwise(const char* name, const Var& x, F f, DF df) {
  Tensor y = empty_like(x.value());
  visit_float(name, x.dtype(), [&]<class T>(TypeTag<T>) {
    T* out = y.mutable_data<T>();
    for (std::int64_t i = 0; i < y.numel(); ++i) out[i] = f(x.value().data<T>()[i]);
  });
  return record(
      name, y,
      [x = save(x), name, df](const Tensor& dy, Grad dx) {
        const bool add = dx.claim();
        visit_float(name, dy.dtype(), [&]<class T>(TypeTag<T>) {
          T* d = dx.data<T>();
          for (std::int64_t i = 0; i < dy.numel(); ++i)
            d[i] = (add ? d[i] : T(0)) + df(x().data<T>()[i]) * dy.data<T>()[i];
        });
      },
      x);
}

Var cube(const Var& x) {
  return pointwise(
      "cube", x, [](auto v) { return v * v * v; }, [](auto v) { return 3 * v * v; });
}
Var bump(const Var& x) {
  return pointwise(
      "bump", x, [](auto v) { return 1 / (1 + v * v); }, [](auto v) { return -2 * v / ((1 + v * v) * (1 + v * v)); });
}

TAPESTRY_GRADCHECK("cube [3, 4]", cube, Shape{3, 4})
TAPESTRY_GRADCHECK(
    "cube of a bump [31]", [](const Var& x) { return cube(bump(x)); }, Shape{31})
TAPESTRY_GRADCHECK("bump at chosen values", bump, tensor({-1, 0, 0.5, 100}, {4}, DType::f64))

int main(int argc, char** argv) { return gradcheck_main(argc, argv); }
