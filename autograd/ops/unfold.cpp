#include "core/kernels/unfold.h"

#include "autograd/ops.h"

namespace tapestry {

Var unfold(const Var& x, HeightWidth size, const UnfoldOptions& o) {
  const Shape& s = x.shape();
  TAP_CHECK(s.rank() == 4, "unfold: x must be [N, C, H, W], not ", s,
            "; reshape it, with extents of 1 for absent axes");
  const Window window{{size.h, o.stride.h, o.padding.h, o.dilation.h}, {size.w, o.stride.w, o.padding.w, o.dilation.w}};
  check_window("unfold", window, s);
  const Unfolding u(window, s[2], s[3]);
  Tensor y = empty({s[0], s[1] * u.taps(), u.places()}, x.dtype(), x.device());
  TAP_DISPATCH(unfold_forward, x.value(), u, y);
  return record(
      "unfold", y, [u](const Tensor& dy, Grad dx) { TAP_DISPATCH(unfold_backward, dy, u, dx); }, x);
}

}  // namespace tapestry
