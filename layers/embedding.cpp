#include "layers/embedding.h"

#include "layers/init.h"

namespace tapestry {

Embedding::Embedding(std::int64_t vocabulary, std::int64_t channels, Rng& rng, std::int64_t padding_id)
    : weight({vocabulary, channels}), padding_id_(padding_id) {
  TAP_CHECK(vocabulary > 0 && channels > 0, "embedding: vocabulary and channels must be at least 1, not ", vocabulary,
            " and ", channels);
  TAP_CHECK(padding_id >= -1 && padding_id < vocabulary, "embedding: padding_id must be in [0, ", vocabulary,
            ") or -1 for none, not ", padding_id);
  init::normal(weight, rng);
  if (padding_id >= 0) weight.mutable_value().rows(padding_id, 1).fill(0);
}

Var Embedding::operator()(const Tensor& ids) const { return embedding(weight, ids, padding_id_); }

void Embedding::visit(Visitor& v) { v("weight", weight); }

}  // namespace tapestry
