// A table of V vectors of C channels, looked up by id. Normal init with std 0.02.
#pragma once

#include "autograd/module.h"
#include "autograd/ops.h"
#include "core/random.h"

namespace tapestry {

class Embedding : public Module {
 public:
  Embedding(std::int64_t vocabulary, std::int64_t channels, Rng& rng, std::int64_t padding_id = -1);
  Var operator()(const Tensor& ids) const;  // ids of shape S -> S + [C]
  void visit(Visitor& v) override;
  std::string_view kind() const override { return "Embedding"; }

  Parameter weight;  // [V, C]; the row of padding_id starts at 0 and stays there

 private:
  std::int64_t padding_id_;
};

}  // namespace tapestry
