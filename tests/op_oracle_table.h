// The functions of the op oracle: what test_op_oracle.cpp computes for each row that make_op_reference.py wrote.
#pragma once

#include <functional>
#include <map>
#include <memory>

#include "layers/gated_mlp.h"
#include "layers/recurrent.h"

namespace tapestry::testing {

using Items = std::map<std::string, Tensor>;  // the tensors of one row; floating ones are f64

// The inputs of a row in the dtype of the run. It notes which of them are differentiated.
class Inputs {
 public:
  Inputs(const Items& items, DType dtype) : items_(items), dtype_(dtype) {}

  bool contains(const std::string& name) const { return items_.contains(name); }
  // A constant of its own, which may be written to.
  Tensor tensor(const std::string& name) const {
    const Tensor& stored = items_.at(name);
    return is_floating(stored.dtype()) ? stored.clone().to(dtype_) : stored;
  }
  Var operator[](const std::string& name) {
    const Var leaf = tape_.watch(tensor(name));
    gradients_.emplace_back(name, [this, leaf] { return tape_.grad(leaf); });
    return leaf;
  }
  // `made` with the row's parameters.
  template <class M>
  const M& layer(M made) {
    const auto module = std::make_shared<M>(std::move(made));
    convert(*module, dtype_);
    for (const NamedParameter& p : parameters(*module)) {
      p.parameter->assign(tensor(p.name));
      gradients_.emplace_back(p.name, [module, parameter = p.parameter] { return parameter->grad(); });
    }
    return *module;
  }

  // The gradients of all that was differentiated, as d<name>.
  Items backward(const Var& y) {
    tape_.backward(y, tensor("dy"));
    Items result;
    for (const auto& [name, gradient] : gradients_) result["d" + name] = gradient();
    return result;
  }

 private:
  const Items& items_;
  DType dtype_;
  Tape tape_;
  std::vector<std::pair<std::string, std::function<Tensor()>>> gradients_;
};

using Function = std::function<Var(Inputs&)>;
using Table = std::map<std::string, Function>;

inline Function unary(Var (*f)(const Var&)) {
  return [=](Inputs& in) { return f(in["x"]); };
}
inline Function binary(Var (*f)(const Var&, const Var&)) {
  return [=](Inputs& in) { return f(in["a"], in["b"]); };
}

// Each key is the name of a row or the beginning of it: "sum" is every row "sum: ..." that has no longer key.
inline void add_pointwise(Table& table) {
  table.insert({{"neg", unary(neg)},
                {"exp", unary(exp)},
                {"log", unary(log)},
                {"sqrt", unary(sqrt)},
                {"square", unary(square)},
                {"tanh", unary(tanh)},
                {"sigmoid", unary(sigmoid)},
                {"relu", unary(relu)},
                {"silu", unary(silu)},
                {"gelu", unary(gelu)},
                {"gelu_tanh", unary(gelu_tanh)},
                {"abs", unary(abs)},
                {"sign", unary(sign)},
                {"expm1", unary(expm1)},
                {"log1p", unary(log1p)},
                {"rsqrt", unary(rsqrt)},
                {"sin", unary(sin)},
                {"cos", unary(cos)},
                {"erf", unary(erf)},
                {"clamp", [](Inputs& in) { return clamp(in["x"], -0.5, 1); }},
                {"leaky_relu", [](Inputs& in) { return leaky_relu(in["x"], 0.2); }},
                {"elu", [](Inputs& in) { return elu(in["x"], 1.5); }},
                {"softplus", [](Inputs& in) { return softplus(in["x"], 2); }},
                {"scale", [](Inputs& in) { return -1.5 * in["x"]; }},
                {"add_scalar", [](Inputs& in) { return in["x"] + 0.75; }},
                {"affine", [](Inputs& in) { return affine(in["x"], -2, 3); }},
                {"reciprocal", [](Inputs& in) { return 2.5 / in["x"]; }}});
  for (const char* exponent : {"0", "0.5", "1", "2", "3", "-1", "-0.5"})
    table[text_of("pow: exponent ", exponent)] = [=](Inputs& in) { return pow(in["x"], std::stod(exponent)); };
  table.insert(
      {{"add", binary(add)},
       {"sub", binary(sub)},
       {"mul", binary(mul)},
       {"div", binary(div)},
       {"minimum", binary(minimum)},
       {"maximum", binary(maximum)},
       {"pow", binary(pow)},
       {"where", [](Inputs& in) { return where(in.tensor("keep"), in["a"], in["b"]); }},
       {"masked_fill: broadcast", [](Inputs& in) { return masked_fill(in["x"], in.tensor("hide"), -2.5); }},
       {"masked_fill: special points", [](Inputs& in) { return masked_fill(in["x"], in.tensor("hide"), INFINITY); }}});
}

inline void add_reductions(Table& table) {
  using Reduction = Var (*)(const Var&, Axes, bool);
  const std::map<std::string, Reduction> reductions = {
      {"sum", sum},
      {"mean", mean},
      {"max", max},
      {"min", min},
      {"prod", prod},
      {"norm", norm},
      {"logsumexp", logsumexp},
      {"var", [](const Var& x, Axes axes, bool keepdim) { return var(x, axes, keepdim); }},
      {"stddev", [](const Var& x, Axes axes, bool keepdim) { return stddev(x, axes, keepdim); }}};
  for (const auto& [name, f] : reductions) {
    table[name] = [f = f](Inputs& in) { return f(in["x"], {}, false); };
    table[name + ": axis 1"] = [f = f](Inputs& in) { return f(in["x"], {1}, false); };
    table[name + ": axes 0 and -1, kept"] = [f = f](Inputs& in) { return f(in["x"], {0, -1}, true); };
  }
  table.insert({{"max: axis 0", [](Inputs& in) { return max(in["x"], {0}); }},
                {"min: axis 0", [](Inputs& in) { return min(in["x"], {0}); }},
                {"var: axis -1, biased", [](Inputs& in) { return var(in["x"], {-1}, false, 0); }},
                {"var: axis -1", [](Inputs& in) { return var(in["x"], {-1}); }},
                {"stddev: axis -1, biased", [](Inputs& in) { return stddev(in["x"], {-1}, false, 0); }},
                {"stddev: axis -1", [](Inputs& in) { return stddev(in["x"], {-1}); }},
                {"cumsum: axis 0", [](Inputs& in) { return cumsum(in["x"], 0); }},
                {"cumsum: axis -1", [](Inputs& in) { return cumsum(in["x"], -1); }}});
}

inline void add_shape_ops(Table& table) {
  table.insert({
      {"reshape: to rank 2",
       [](Inputs& in) {
         return reshape(in["x"], {-1, 2});
       }},
      {"reshape: to rank 0", [](Inputs& in) { return reshape(in["x"], Shape{}); }},
      {"permute",
       [](Inputs& in) {
         return permute(in["x"], {2, 0, 1});
       }},
      {"transpose: rank 3", [](Inputs& in) { return transpose(in["x"]); }},
      {"transpose: axes 0 and 2", [](Inputs& in) { return transpose(in["x"], 0, 2); }},
      {"slice: range", [](Inputs& in) { return slice(in["x"], 1, 1, 3); }},
      {"slice: step 3", [](Inputs& in) { return slice(in["x"], 0, 1, 7, 3); }},
      {"slice: backwards by 2", [](Inputs& in) { return slice(in["x"], 1, 4, -1, -2); }},
      {"slice: to nothing", [](Inputs& in) { return slice(in["x"], 1, 2, 2); }},
      {"flip: axes 0 and 2",
       [](Inputs& in) {
         return flip(in["x"], {0, 2});
       }},
      {"flip: rank 1", [](Inputs& in) { return flip(in["x"], {0}); }},
      {"expand", [](Inputs& in) { return expand(in["x"], in.tensor("y").shape()); }},
      {"pad: axis 0", [](Inputs& in) { return pad(in["x"], 0, 1, 2, 0.5); }},
      {"pad: empty", [](Inputs& in) { return pad(in["x"], 0, 2, 1, -1); }},
      {"repeat_interleave: axis 1", [](Inputs& in) { return repeat_interleave(in["x"], 3, 1); }},
      {"repeat_interleave: rank 1", [](Inputs& in) { return repeat_interleave(in["x"], 2, 0); }},
      {"concat: axis 1",
       [](Inputs& in) {
         return concat({in["a"], in["b"], in["c"]}, 1);
       }},
      {"concat: rank 1",
       [](Inputs& in) {
         return concat({in["a"], in["b"], in["c"]}, 0);
       }},
      {"stack: axis 1",
       [](Inputs& in) {
         return stack({in["a"], in["b"]}, 1);
       }},
      {"stack: rank 0",
       [](Inputs& in) {
         return stack({in["a"], in["b"]}, 0);
       }},
      {"split: three sizes",
       [](Inputs& in) {
         const auto [a, b, c] = split(in["x"], 1, {1, 3, 2});
         return concat({c, b, a}, 1);
       }},
      {"split: at 1", [](Inputs& in) { return split(in["x"], 0, 1)[1]; }},
      {"chunk: three parts",
       [](Inputs& in) {
         const auto [q, k, v] = chunk<3>(in["x"], -1);
         return q * k - v;
       }},
      {"gather: axis 0", [](Inputs& in) { return gather(in["x"], 0, in.tensor("index")); }},
      {"gather: axis 1", [](Inputs& in) { return gather(in["x"], 1, in.tensor("index")); }},
      {"index_select: axis 0", [](Inputs& in) { return index_select(in["x"], 0, in.tensor("index")); }},
      {"index_select: axis 1", [](Inputs& in) { return index_select(in["x"], 1, in.tensor("index")); }},
      {"scatter_add: axis 0", [](Inputs& in) { return scatter_add(in["x"], 0, in.tensor("index"), in["source"]); }},
      {"scatter_add: axis 1", [](Inputs& in) { return scatter_add(in["x"], 1, in.tensor("index"), in["source"]); }},
      {"tril", [](Inputs& in) { return tril(in["x"]); }},
      {"tril: diagonal 1", [](Inputs& in) { return tril(in["x"], 1); }},
      {"tril: diagonal -1", [](Inputs& in) { return tril(in["x"], -1); }},
      {"triu", [](Inputs& in) { return triu(in["x"]); }},
      {"triu: diagonal 1", [](Inputs& in) { return triu(in["x"], 1); }},
      {"triu: diagonal -1", [](Inputs& in) { return triu(in["x"], -1); }},
  });
}

inline Function batchnorm_row(bool training) {
  return [=](Inputs& in) {
    const Tensor mean = in.tensor("running_mean"), variance = in.tensor("running_var");
    const Var y = batchnorm(in["x"], in["weight"], in["bias"], mean, variance, training, 0.3);
    return concat({reshape(y, {-1}), mean, variance}, 0);
  };
}

inline void add_products_and_norms(Table& table) {
  table.insert({
      {"matmul", [](Inputs& in) { return matmul(in["a"], in["b"]); }},
      {"matmul: a transposed", [](Inputs& in) { return matmul(in["a"], in["b"], true); }},
      {"matmul: b transposed", [](Inputs& in) { return matmul(in["a"], in["b"], false, true); }},
      {"matmul: both transposed", [](Inputs& in) { return matmul(in["a"], in["b"], true, true); }},
      {"linear", [](Inputs& in) { return linear(in["x"], in["weight"], in["bias"]); }},
      {"linear: without bias", [](Inputs& in) { return linear(in["x"], in["weight"]); }},
      {"embedding", [](Inputs& in) { return embedding(in["table"], in.tensor("ids")); }},
      {"embedding: padding id 1", [](Inputs& in) { return embedding(in["table"], in.tensor("ids"), 1); }},
      {"softmax", [](Inputs& in) { return softmax(in["x"]); }},
      {"softmax: keep mask", [](Inputs& in) { return softmax(in["x"], in.tensor("keep")); }},
      {"softmax: added mask", [](Inputs& in) { return softmax(in["x"], in["added"]); }},
      {"log_softmax", [](Inputs& in) { return log_softmax(in["x"]); }},
      {"log_softmax: keep mask", [](Inputs& in) { return log_softmax(in["x"], in.tensor("keep")); }},
      {"log_softmax: added mask", [](Inputs& in) { return log_softmax(in["x"], in["added"]); }},
      {"layernorm", [](Inputs& in) { return layernorm(in["x"], in["weight"], in["bias"]); }},
      {"layernorm: std plus eps",
       [](Inputs& in) { return layernorm(in["x"], in["weight"], in["bias"], 1e-6, LayerNormForm::std_plus_eps); }},
      {"rmsnorm", [](Inputs& in) { return rmsnorm(in["x"], in["weight"]); }},
      {"batchnorm: training", batchnorm_row(true)},
      {"batchnorm: eval", batchnorm_row(false)},
  });
  for (const std::int64_t groups : {1, 2, 4})
    table[text_of("groupnorm: ", groups, " groups")] = [=](Inputs& in) {
      return groupnorm(in["x"], in["weight"], in["bias"], groups);
    };
}

inline Function class_loss(const CrossEntropyOptions& options = {}) {
  return [=](Inputs& in) {
    CrossEntropyOptions own = options;
    if (in.contains("weights")) own.class_weights = in.tensor("weights");
    return cross_entropy(in["x"], in.tensor("targets"), own).loss;
  };
}
inline Function distribution_loss(double smoothing) {
  return [=](Inputs& in) {
    CrossEntropyOptions options{.label_smoothing = smoothing};
    if (in.contains("weights")) options.class_weights = in.tensor("weights");
    return soft_cross_entropy(in["x"], in["q"], options).loss;
  };
}

inline void add_losses(Table& table) {
  const std::map<std::string, LossReduction> reductions = {
      {"mean", LossReduction::mean}, {"sum", LossReduction::sum}, {"none", LossReduction::none}};
  for (const auto& [name, r] : reductions) {
    table["mse: " + name] = [r = r](Inputs& in) { return mse(in["x"], in["t"], r); };
    table["l1: " + name] = [r = r](Inputs& in) { return l1(in["x"], in["t"], r); };
    table["huber: " + name] = [r = r](Inputs& in) { return huber(in["x"], in["t"], 0.5, r); };
    table["bce_with_logits: " + name] = [r = r](Inputs& in) { return bce_with_logits(in["x"], in["t"], {}, r); };
    table["kl_div: " + name] = [r = r](Inputs& in) { return kl_div(in["x"], in["t"], r); };
    table["nll: " + name] = [r = r](Inputs& in) {
      return nll(in["x"], in.tensor("targets"),
                 {.ignore_index = -1, .class_weights = in.tensor("weights"), .reduction = r});
    };
  }
  table.insert({
      {"bce_with_logits: weighted by class",
       [](Inputs& in) { return bce_with_logits(in["x"], in["t"], in.tensor("pos_weight")); }},
      {"nll: default", [](Inputs& in) { return nll(in["x"], in.tensor("targets")); }},
      {"cross_entropy", class_loss()},
      {"cross_entropy: ignore index 3", class_loss({.ignore_index = 3})},
      {"cross_entropy: smoothed", class_loss({.label_smoothing = 0.1})},
      {"cross_entropy: z-loss", class_loss({.z_loss = 0.3})},
      {"soft_cross_entropy", distribution_loss(0)},
      {"soft_cross_entropy: smoothed", distribution_loss(0.2)},
  });
}

inline Function conv1d_row(const Conv1dOptions& options = {}) {
  return [=](Inputs& in) { return conv1d(in["x"], in["weight"], in.contains("bias") ? in["bias"] : Var(), options); };
}
inline Function conv2d_row(const Conv2dOptions& options = {}) {
  return [=](Inputs& in) { return conv2d(in["x"], in["weight"], in.contains("bias") ? in["bias"] : Var(), options); };
}
template <class Options>
Function pool_row(Var (*f)(const Var&, const Options&), const Options& options) {
  return [=](Inputs& in) { return f(in["x"], options); };
}

inline void add_windows(Table& table) {
  table.insert({
      {"conv1d", conv1d_row()},
      {"conv1d: stride 2, padding 1", conv1d_row({.stride = 2, .padding = 1})},
      {"conv1d: dilation 2", conv1d_row({.dilation = 2})},
      {"conv1d: two groups", conv1d_row({.groups = 2})},
      {"conv2d", conv2d_row()},
      {"conv2d: stride 2, padding 1", conv2d_row({.stride = 2, .padding = 1})},
      {"conv2d: stride by axis", conv2d_row({.stride = {1, 2}, .padding = {0, 1}})},
      {"conv2d: dilation 2", conv2d_row({.dilation = 2})},
      {"conv2d: depthwise", conv2d_row({.padding = 1, .groups = 3})},
      {"unfold: stride 2, padding 1",
       [](Inputs& in) {
         return unfold(in["x"], {2, 3}, {.stride = 2, .padding = 1});
       }},
      {"unfold: dilation 2", [](Inputs& in) { return unfold(in["x"], 2, {.dilation = 2}); }},
      {"max_pool1d: window 2", pool_row(max_pool1d, {.size = 2})},
      {"max_pool2d: window 2", pool_row(max_pool2d, {.size = 2})},
      {"avg_pool1d: window 2", pool_row(avg_pool1d, {.size = 2})},
      {"avg_pool2d: window 2", pool_row(avg_pool2d, {.size = 2})},
      {"max_pool1d: window 3", pool_row(max_pool1d, {.size = 3, .stride = 2, .padding = 1})},
      {"max_pool2d: window 3", pool_row(max_pool2d, {.size = 3, .stride = 2, .padding = 1})},
      {"avg_pool1d: window 3", pool_row(avg_pool1d, {.size = 3, .stride = 2, .padding = 1})},
      {"avg_pool2d: window 3", pool_row(avg_pool2d, {.size = 3, .stride = 2, .padding = 1})},
      {"max_pool2d: window 3 by 2", pool_row(max_pool2d, {.size = {3, 2}, .stride = 1})},
      {"max_pool2d: dilation 2", pool_row(max_pool2d, {.size = 2, .stride = 1, .dilation = 2})},
      {"avg_pool2d: padding not counted",
       pool_row(avg_pool2d, {.size = 3, .stride = 2, .padding = 1, .count_include_pad = false})},
  });
}

inline Function gated(Activation activation) {
  return [=](Inputs& in) {
    Rng rng(1);
    return in.layer(GatedMlp({.width = 3, .hidden = 4, .activation = activation}, rng))(in["x"]);
  };
}
template <class Cell>
const Cell& cell(Inputs& in) {
  Rng rng(1);
  return in.layer(Cell({.in = 3, .hidden = 4, .bias = in.contains("maps.input.bias")}, rng));
}

inline void add_layers(Table& table) {
  table.insert({
      {"rnn_cell", [](Inputs& in) { return cell<RnnCell>(in)(in["x"], in["h"]); }},
      {"gru_cell", [](Inputs& in) { return cell<GruCell>(in)(in["x"], in["h"]); }},
      {"lstm_cell",
       [](Inputs& in) {
         const LstmCell::State next = cell<LstmCell>(in)(in["x"], {in["h"], in["c"]});
         return concat({next.h, next.c}, 1);
       }},
      {"gated_mlp: GLU", gated(Activation::sigmoid)},
      {"gated_mlp: GEGLU", gated(Activation::gelu)},
      {"gated_mlp: SwiGLU", gated(Activation::silu)},
  });
}

inline Table op_oracle_table() {
  Table table;
  for (auto add :
       {add_pointwise, add_reductions, add_shape_ops, add_products_and_norms, add_losses, add_windows, add_layers})
    add(table);
  return table;
}

}  // namespace tapestry::testing
