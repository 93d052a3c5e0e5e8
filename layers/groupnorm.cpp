#include "layers/groupnorm.h"

#include "layers/init.h"

namespace tapestry {

GroupNorm::GroupNorm(std::int64_t groups, std::int64_t channels, double eps)
    : weight({channels}), bias({channels}), groups_(groups), eps_(eps) {
  TAP_CHECK(channels > 0, "groupnorm: channels must be at least 1, not ", channels);
  TAP_CHECK(groups > 0 && channels % groups == 0, "groupnorm: ", groups, " groups do not divide ", channels,
            " channels; use one of ", divisors(channels));
  TAP_CHECK(eps >= 0, "groupnorm: eps must be 0 or more, not ", eps);
  init::constant(weight, 1);
}

void GroupNorm::visit(Visitor& v) {
  v("weight", weight);
  v("bias", bias);
}

}  // namespace tapestry
