// Convolutions of [N, C, L] and [N, C, H, W]. weight is PyTorch's [out, in / groups, taps...]; weight and bias are
// uniform within 1 / sqrt(fan_in) at first, PyTorch's default. See conv1d and conv2d in autograd/ops.h.
#pragma once

#include <optional>

#include "autograd/module.h"
#include "autograd/ops.h"
#include "core/random.h"

namespace tapestry {

struct Conv1dConfig {
  std::int64_t in = 0, out = 0;  // channels
  std::int64_t size = 0;         // of the window
  std::int64_t stride = 1, padding = 0, dilation = 1;
  std::int64_t groups = 1;
  bool bias = true;
};

class Conv1d : public Module {
 public:
  Conv1d(const Conv1dConfig& config, Rng& rng);
  Var operator()(const Var& x) const;  // [N, in, L] -> [N, out, places]
  void visit(Visitor& v) override;
  std::string_view kind() const override { return "Conv1d"; }
  std::int64_t own_flops() const override { return 2 * weight.numel(); }  // for one place of the window

  Parameter weight;               // [out, in / groups, size]
  std::optional<Parameter> bias;  // [out]

 private:
  Conv1dOptions options_;
};

struct Conv2dConfig {
  std::int64_t in = 0, out = 0;
  HeightWidth size = 0;  // of the window; one number, as for the others, stands for both axes
  HeightWidth stride = 1, padding = 0, dilation = 1;
  std::int64_t groups = 1;
  bool bias = true;
};

class Conv2d : public Module {
 public:
  Conv2d(const Conv2dConfig& config, Rng& rng);
  Var operator()(const Var& x) const;  // [N, in, H, W] -> [N, out, places down, places across]
  void visit(Visitor& v) override;
  std::string_view kind() const override { return "Conv2d"; }
  std::int64_t own_flops() const override { return 2 * weight.numel(); }  // for one place of the window

  Parameter weight;               // [out, in / groups, h, w]
  std::optional<Parameter> bias;  // [out]

 private:
  Conv2dOptions options_;
};

}  // namespace tapestry
