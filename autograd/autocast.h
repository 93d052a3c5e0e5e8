// Autocast: mixed precision for every op that runs while it lives. Products read and give 16 bits and sum in f32; what
// 16 bits would spoil stays f32. Parameters and their gradients are f32 as ever; so is a residual stream that starts at
// one:
//
//   Tape tape;
//   const CrossEntropy result = [&] {
//     const Autocast scope(DType::bf16);
//     return model.loss(tokens, targets);
//   }();
//   tape.backward(result.loss);
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "core/dtype.h"

namespace tapestry {

// Of this thread; nests. backward() runs without it, and checkpoint() recomputes under the one that it was called in.
class Autocast {
 public:
  explicit Autocast(DType dtype);  // bf16 or f16; f32 switches it off inside; others throw
  ~Autocast() { current_ = outer_; }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

  static DType current() { return current_; }  // f32: off
  // What a product or normalisation of x gives: the low type; x's own where Autocast is off or x is f64.
  static DType low(DType x) { return current_ == DType::f32 || x == DType::f64 ? x : current_; }

 private:
  DType outer_;
  static inline thread_local DType current_ = DType::f32;
};

// What an op does with the types of its operands. f64 is left alone: with f64 operands an op is as without Autocast.
enum class CastPolicy : std::uint8_t { low, norm, f32, widest, follow };

struct CastPolicyRow {
  CastPolicy policy;
  std::string_view name, meaning, ops;  // ops: names with one space between
};

// The whole policy: every function of autograd/ops.h stands in one row (operators are the functions that they call).
inline constexpr CastPolicyRow kCastPolicies[] = {
    {CastPolicy::low, "low", "operands and result in the low type, sums in f32; bias and residual may be f32",
     "matmul linear linear_gelu conv1d conv2d attention attention_packed"},
    {CastPolicy::norm, "norm", "operands as they are, statistics and arithmetic in f32, result in the low type",
     "layernorm rmsnorm batchnorm groupnorm"},
    {CastPolicy::f32, "f32", "computed and returned in f32",
     "softmax log_softmax cross_entropy soft_cross_entropy nll mse l1 huber bce_with_logits kl_div exp expm1 log log1p "
     "pow square rsqrt reciprocal softplus sum mean max min prod var stddev norm logsumexp cumsum"},
    {CastPolicy::widest, "widest", "operands of two types meet in the wider one, f32 for bf16 with f16; always so",
     "add sub mul div minimum maximum where masked_fill concat stack scatter_add gru_gates lstm_gates"},
    {CastPolicy::follow, "follow", "the type of the operand",
     "neg abs sign sqrt sin cos erf tanh sigmoid relu leaky_relu elu silu gelu gelu_tanh clamp scale affine add_scalar "
     "reshape permute transpose slice flip expand pad repeat_interleave split chunk tril triu gather index_select "
     "embedding dropout unfold max_pool1d max_pool2d avg_pool1d avg_pool2d cast one_hot"},
};

// Calls f(name) for each op of the row.
template <class F>
constexpr void for_each_op(const CastPolicyRow& row, F&& f) {
  for (std::string_view rest = row.ops; !rest.empty();) {
    const std::string_view name = rest.substr(0, rest.find(' '));
    f(name);
    rest.remove_prefix(name.size() == rest.size() ? rest.size() : name.size() + 1);
  }
}

// A name that has no row does not compile.
consteval CastPolicy policy_of(std::string_view op) {
  std::optional<CastPolicy> found;
  for (const CastPolicyRow& row : kCastPolicies)
    for_each_op(row, [&](std::string_view name) {
      if (name == op) found = row.policy;
    });
  if (!found) throw "the op has no row in kCastPolicies";
  return *found;
}

}  // namespace tapestry
