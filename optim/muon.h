// Muon (Jordan et al. 2024) for matrices, with AdamW for all other parameters: one optimizer, one step.
#pragma once

#include "optim/adam.h"

namespace tapestry {

// The length of an update: of an orthogonal matrix [in, out] it is 1 in the spectral norm.
enum class MuonScale {
  match_adamw,  // times 0.2 sqrt(max(in, out)): as large as an update of AdamW, so one rate and one decay suit both
  original,     // times sqrt(max(1, out / in)), Jordan's; takes a rate about 0.02, so give the others an lr_scale
};
struct MuonOptions {
  double momentum = 0.95;
  bool nesterov = true;
  int iterations = 5;  // of Newton-Schulz
  double eps = 1e-7;   // least norm that a momentum is divided by
  MuonScale scale = MuonScale::match_adamw;
  double weight_decay = 0.1;         // decoupled: p -= lr * weight_decay * p; also that of `others`
  double beta1 = 0.9, beta2 = 0.95;  // of AdamW for the others
  double adamw_eps = 1e-8;
};
// Weights count as [in, out]. `matrices` are the hidden layers' weights and must have two axes; all the rest, and by
// the authors' advice embeddings and the head too, belong to `others`.
class Muon : public Optimizer {
 public:
  Muon(std::vector<ParameterGroup> matrices, std::vector<ParameterGroup> others, const MuonOptions& options = {});
  // Two axes: Muon, unless is_other says so. All else: AdamW, with no decay below two axes.
  using Predicate = std::function<bool(const NamedParameter&)>;
  explicit Muon(std::vector<NamedParameter> parameters, const MuonOptions& options = {},
                const Predicate& is_other = {});
  std::string_view name() const override { return "Muon"; }

 private:
  struct Groups {
    std::vector<ParameterGroup> all;
    std::size_t matrices;  // groups that come first
  };
  static Groups split(std::vector<NamedParameter> parameters, const Predicate& is_other);
  static Groups join(std::vector<ParameterGroup> matrices, std::vector<ParameterGroup> others);
  Muon(Groups groups, const MuonOptions& options);
  void update(const Range& range) override;
  MuonOptions options_;
  std::size_t matrix_groups_;
};

}  // namespace tapestry
