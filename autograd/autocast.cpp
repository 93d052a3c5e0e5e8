#include "autograd/autocast.h"

#include "autograd/ops.h"
#include "autograd/ops/operands.h"

namespace tapestry {

Autocast::Autocast(DType dtype) : outer_(current_) {
  TAP_CHECK(is_16bit(dtype) || dtype == DType::f32, "autocast: takes bf16 or f16, or f32 to switch it off, not ", dtype,
            dtype == DType::f64 ? "; an f64 model runs in f64 under any Autocast" : "");
  current_ = dtype;
}

Var Var::read_as(DType dtype) const {
  Var result = *this;
  result.value_ = parameter_ ? parameter_->converted(value_, dtype) : value_.to(dtype);
  result.source_ = value_.storage();
  return result;
}

void detail::convert_operands(CastPolicy policy, std::size_t weight, std::span<const Var*> operands,
                              std::optional<Var>* converted) {
  const auto counts = [](const Var* v) { return *v && is_floating(v->dtype()); };  // not left out, no mask
  const DType low = Autocast::current();
  const bool off = low == DType::f32;
  if (policy == CastPolicy::low && off) return;
  std::optional<DType> widest;
  for (const Var* v : operands)
    if (counts(v)) widest = promote(widest.value_or(v->dtype()), v->dtype());
  if (!widest || widest == DType::f64) return;
  const DType dtype = policy == CastPolicy::low ? low : policy == CastPolicy::f32 && !off ? DType::f32 : *widest;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    const Var& v = *operands[i];
    if (!counts(&v) || v.dtype() == dtype) continue;
    const bool is_weight = i == weight || (weight == kParameters && v.parameter());
    converted[i].emplace(is_weight && v.dtype() == DType::f32 ? v.read_as(dtype) : cast(v, dtype));
    operands[i] = &*converted[i];
  }
}

}  // namespace tapestry
