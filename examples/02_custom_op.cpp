// An op of your own: a forward, a backward directly below it, and gradcheck as its test.
#include <cmath>
#include <cstdio>

#include "tapestry.h"

using namespace tapestry;

// softsign(x) = x / (1 + |x|), derivative 1 / (1 + |x|)^2.
//
// record() takes the name, the result, a backward function and the inputs. The backward function gets dy and one Grad
// for each input; what it captures is what is kept for it. save() guards an input against later changes.
template <bool Correct = true>
Var softsign(const Var& x) {
  Tensor y = empty_like(x.value());
  visit_float("softsign", x.dtype(), [&]<class T>(TypeTag<T>) {
    const T* in = x.value().data<T>();
    T* out = y.mutable_data<T>();
    for (std::int64_t i = 0; i < y.numel(); ++i) out[i] = in[i] / (1 + std::abs(in[i]));
  });
  return record(
      "softsign", y,
      [x = save(x)](const Tensor& dy, Grad dx) {
        const bool add = dx.claim();  // false: overwrite what is there, true: add to it
        visit_float("softsign", dy.dtype(), [&]<class T>(TypeTag<T>) {
          const T *in = x().data<T>(), *d = dy.data<T>();
          T* out = dx.data<T>();
          for (std::int64_t i = 0; i < dy.numel(); ++i) {
            const T root = 1 + std::abs(in[i]);
            const T value = d[i] / (Correct ? root * root : root);
            out[i] = add ? out[i] + value : value;
          }
        });
      },
      x);
}

int main() {
  Tensor x = empty({4, 3}, DType::f64);
  fill_normal(x, 0, 1, RandomKey{1, 0});

  const GradcheckReport good = gradcheck([](const Var& v) { return softsign(v); }, {x});
  std::printf("softsign: %s\n", good.text().c_str());

  // A wrong derivative does not get through.
  const GradcheckReport bad = gradcheck([](const Var& v) { return softsign<false>(v); }, {x});
  std::printf("softsign with a wrong derivative: %s\n", bad.text().c_str());

  return good && !bad ? 0 : 1;
}
