#include "core/kernels/batchnorm.h"

#include "autograd/ops.h"

namespace tapestry {

Var batchnorm(const Var& x, const Var& weight, const Var& bias, Tensor running_mean, Tensor running_var, bool training,
              double momentum, double eps) {
  const Shape& s = x.shape();
  TAP_CHECK(s.rank() >= 2 && s[1] > 0, "batchnorm: x must be [N, C] or [N, C, L...] with C at least 1, not ", s);
  const Shape channels{s[1]};
  auto check = [&](const Shape& shape, std::string_view name) {
    TAP_CHECK(shape == channels, "batchnorm: x is ", s, ", so ", name, " must be ", channels, ", not ", shape);
  };
  check(weight.shape(), "weight");
  check(bias.shape(), "bias");
  check(running_mean.shape(), "running_mean");
  check(running_var.shape(), "running_var");
  TAP_CHECK(eps >= 0, "batchnorm: eps must not be negative, not ", eps);
  TAP_CHECK(momentum >= 0 && momentum <= 1, "batchnorm: momentum, the weight of the new batch, must be in [0, 1], not ",
            momentum);
  TAP_CHECK(!training || x.numel() != s[1], "batchnorm: x is ", s,
            ", one value per channel, whose variance is not defined; use a larger batch, or eval mode");
  Tensor y = empty_like(x.value());
  Tensor mean = empty(channels, accumulate_dtype(x.dtype()), x.device()), rstd = empty_like(mean);
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
