// What a gradient check needs besides the comparison: a loss for any cotangent, and a module in double for a while.
#include "autograd/gradcheck.h"
#include "core/kernels/widen.h"

namespace tapestry {

Var inner_product(std::span<const Var> outputs, const Tensor& cotangent) {
  std::vector<std::int64_t> offsets{0};
  for (const Var& y : outputs) offsets.push_back(offsets.back() + y.numel());
  TAP_CHECK(cotangent.dtype() == DType::f64 && cotangent.numel() == offsets.back(), "inner_product: the outputs have ",
            offsets.back(), " elements, so the cotangent must hold as many f64, not ", cotangent.numel(), " ",
            cotangent.dtype());
  const double* c = cotangent.data<double>();
  double sum = 0;
  for (std::size_t k = 0; k < outputs.size(); ++k) {
    const Tensor y = outputs[k].value().to(DType::f64);
    for (std::int64_t i = 0; i < y.numel(); ++i) sum += c[offsets[k] + i] * y.data<double>()[i];
  }
  const Tensor starts = from_values(offsets, {static_cast<std::int64_t>(offsets.size())});
  return record(
      "inner_product", scalar(sum, DType::f64),
      [cotangent, starts](const Tensor& dy, std::span<const Grad> grads) {
        const double seed = dy.item();
        for (std::size_t k = 0; k < grads.size(); ++k) {
          if (!grads[k]) continue;
          const double* from = cotangent.data<double>() + starts.data<std::int64_t>()[k];
          detail::Widened<Grad> wide(grads[k]);
          visit_float("inner_product", wide.get().dtype(), [&]<class T>(TypeTag<T>) {
            const bool add = wide.get().claim();
            T* d = wide.get().data<T>();
            for (std::int64_t i = 0; i < grads[k].shape().numel(); ++i)
              d[i] = static_cast<T>((add ? static_cast<double>(d[i]) : 0.0) + seed * from[i]);
          });
          wide.finish();
        }
      },
      outputs);
}

ConvertScope::ConvertScope(Module& module, DType dtype) {
  for (const NamedParameter& p : parameters(module)) {
    TAP_CHECK(!p.parameter->packed(), "gradcheck: an optimizer holds ", p.name, "; create the optimizer afterwards");
    parameters_.push_back({p.parameter, p.parameter->value().clone()});
  }
  for (const NamedBuffer& b : buffers(module)) buffers_.push_back({b.buffer, b.buffer->clone()});
  convert(module, dtype);
  zero_grad(module);
}

ConvertScope::~ConvertScope() {
  for (const SavedParameter& saved : parameters_) {
    saved.parameter->to(saved.value.dtype());
    saved.parameter->assign(saved.value);
    saved.parameter->zero_grad();
  }
  for (const SavedBuffer& saved : buffers_) *saved.buffer = saved.value;
}

}  // namespace tapestry
