// The catalogue, family by family.
#include "tests/cases/make.h"

namespace tapestry {

std::vector<Case> all_cases() {
  std::vector<Case> all;
  for (auto family : {pointwise_cases, reduction_cases, shape_cases, indexing_cases, product_cases, convolution_cases,
                      pool_cases, row_cases, norm_cases, loss_cases, recurrent_cases, attention_cases, layer_cases})
    for (Case& c : family()) all.push_back(std::move(c));
  return all;
}

}  // namespace tapestry
