#include "core/kernels/groupnorm.h"

#include "autograd/ops.h"
#include "autograd/ops/checks.h"
#include "autograd/ops/operands.h"

namespace tapestry {

Var groupnorm(const Var& x, const Var& weight, const Var& bias, std::int64_t groups, double eps) {
  const Shape& s = x.shape();
  detail::check_channel_norm("groupnorm", x, {{"weight", weight}, {"bias", bias}}, eps);
  TAP_CHECK(groups > 0 && s[1] % groups == 0, "groupnorm: ", groups, " groups do not divide ", s[1],
            " channels; use one of ", divisors(s[1]));
  Tensor y = empty(s, detail::normalised_dtype<"groupnorm">(x.dtype()), x.device());
  Tensor mean = empty({s[0], groups}, accumulate_dtype(x.dtype()), x.device()), rstd = empty_like(mean);
  TAP_DISPATCH(groupnorm_forward, x.value(), weight.value(), bias.value(), groups, eps, y, mean, rstd);
  return record(
      "groupnorm", y,
      [x = save(x), weight = save(weight), mean, rstd, groups](const Tensor& dy, Grad dx, Grad dweight, Grad dbias) {
        TAP_DISPATCH(groupnorm_backward, dy, x(), weight(), mean, rstd, groups, dx, dweight, dbias);
      },
      x, weight, bias);
}

}  // namespace tapestry
