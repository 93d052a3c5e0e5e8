#include "layers/rmsnorm.h"

#include "layers/init.h"

namespace tapestry {

RMSNorm::RMSNorm(std::int64_t channels, double eps) : weight({channels}), eps_(eps) {
  TAP_CHECK(channels > 0, "rmsnorm: channels must be at least 1, not ", channels);
  TAP_CHECK(eps >= 0, "rmsnorm: eps must be 0 or more, not ", eps);
  init::constant(weight, 1);
}

}  // namespace tapestry
