// The catalogue, family by family.
#include "catalogue_menu.h"
#include "tests/cases/make.h"

namespace tapestry {

std::vector<Case> all_cases(std::uint64_t seed) {
  const CaseSeed scope(seed);
  std::vector<Case> all;
  for (auto family : {pointwise_cases, reduction_cases, shape_cases, indexing_cases, product_cases, convolution_cases,
                      pool_cases, row_cases, norm_cases, loss_cases, recurrent_cases, attention_cases, layer_cases})
    for (Case& c : family()) all.push_back(std::move(c));
  for (Case& c : all) {
    c.gradcheck.seed = seed;
    c.low = true;
    c.gradcheck.max_kink_share = 0.25;  // some seed draws a value on a kink of relu
  }
  return all;
}

const Menu& menu() {
  static const Menu names{{std::begin(kOps), std::end(kOps)}, {std::begin(kLayers), std::end(kLayers)}};
  return names;
}

}  // namespace tapestry
