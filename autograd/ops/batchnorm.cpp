#include "core/kernels/batchnorm.h"

#include "autograd/ops.h"
#include "autograd/ops/checks.h"
#include "autograd/ops/operands.h"

namespace tapestry {

Var batchnorm(const Var& x, const Var& weight, const Var& bias, Tensor running_mean, Tensor running_var, bool training,
              double momentum, double eps) {
  const Shape& s = x.shape();
  detail::check_channel_norm(
      "batchnorm", x,
      {{"weight", weight}, {"bias", bias}, {"running_mean", running_mean}, {"running_var", running_var}}, eps);
  TAP_CHECK(momentum >= 0 && momentum <= 1, "batchnorm: momentum, the weight of the new batch, must be in [0, 1], not ",
            momentum);
  TAP_CHECK(!training || x.numel() != s[1], "batchnorm: x is ", s,
            ", one value per channel, whose variance is not defined; use a larger batch, or eval mode");
  Tensor y = empty(s, detail::normalised_dtype<"batchnorm">(x.dtype()), x.device());
  Tensor mean = empty({s[1]}, accumulate_dtype(x.dtype()), x.device()), rstd = empty_like(mean);
  const WriterScope writer("batchnorm");
  TAP_DISPATCH(batchnorm_forward, x.value(), weight.value(), bias.value(), eps, training, momentum, running_mean,
               running_var, y, mean, rstd);
  return record(
      "batchnorm", y,
      [x = save(x), weight = save(weight), mean, rstd, training](const Tensor& dy, Grad dx, Grad dweight, Grad dbias) {
        TAP_DISPATCH(batchnorm_backward, dy, x(), weight(), mean, rstd, training, dx, dweight, dbias);
      },
      x, weight, bias);
}

}  // namespace tapestry
