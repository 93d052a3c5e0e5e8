#include "layers/models/generate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace tapestry {

void SamplingOptions::check() const {
  TAP_CHECK(temperature >= 0 && std::isfinite(temperature), "sample: temperature must be 0 or more, not ", temperature);
  TAP_CHECK(top_k >= 0, "sample: top_k must be 0 (all) or more, not ", top_k);
  TAP_CHECK(top_p > 0 && top_p <= 1, "sample: top_p must be in (0, 1], not ", top_p);
}

std::int32_t sample_token(std::span<const float> logits, const SamplingOptions& options, double uniform) {
  TAP_CHECK(!logits.empty(), "sample: there are no logits");
  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const bool ordered = std::none_of(logits.begin(), logits.end(), [](float z) { return std::isnan(z); });
  if (ordered) std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return logits[a] > logits[b]; });
  TAP_CHECK(ordered && std::isfinite(logits[order[0]]),
            "sample: the model's logits are not finite; its weights are damaged");
  if (options.temperature == 0) return order[0];
  if (options.top_k > 0) order.resize(std::min(order.size(), static_cast<std::size_t>(options.top_k)));

  std::vector<double> cumulative(order.size());
  double total = 0;
  for (std::size_t i = 0; i < order.size(); ++i)
    cumulative[i] = total += std::exp((logits[order[i]] - logits[order[0]]) / options.temperature);
  const auto kept = std::lower_bound(cumulative.begin(), cumulative.end(), options.top_p * total);
  if (kept != cumulative.end()) cumulative.erase(kept + 1, cumulative.end());
  const auto chosen = std::upper_bound(cumulative.begin(), cumulative.end(), uniform * cumulative.back());
  return order[static_cast<std::size_t>(std::min(chosen, cumulative.end() - 1) - cumulative.begin())];
}

void generate(Gpt& model, std::span<const std::int32_t> prompt, std::int64_t count, const SamplingOptions& options,
              const std::function<bool(std::int32_t)>& on_token) {
  options.check();
  TAP_CHECK(!prompt.empty(), "generate: the prompt needs at least one token");
  TAP_CHECK(count >= 0, "generate: the number of tokens must not be negative, not ", count);
  const EvalScope eval_scope(model);

  const RandomKey key{derive_seed(options.seed, "sample"), 0};
  const std::int64_t context = model.config().context;
  std::vector<std::int32_t> text(prompt.begin(), prompt.end());
  Gpt::Cache cache = model.make_cache(1);
  std::size_t fed = text.size() - std::min(text.size(), static_cast<std::size_t>(context));
  for (std::int64_t i = 0; i < count; ++i) {
    if (cache.length + static_cast<std::int64_t>(text.size() - fed) > context) {
      cache = model.make_cache(1);
      fed = text.size() - static_cast<std::size_t>(std::max<std::int64_t>(1, context / 2));
    }
    const std::span<const std::int32_t> fresh(text.data() + fed, text.size() - fed);
    const Tensor logits = model.extend(from_span(fresh, {1, static_cast<std::int64_t>(fresh.size())}), cache);
    fed = text.size();
    const Tensor row = logits.to(DType::f32);
    const std::span<const float> z(row.data<float>(), static_cast<std::size_t>(row.numel()));
    text.push_back(sample_token(z, options, key.uniform(i)));
    if (!on_token(text.back())) return;
  }
}

}  // namespace tapestry
