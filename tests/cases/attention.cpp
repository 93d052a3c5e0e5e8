// attention in both layouts: lengths, grouped heads, causal, padding, both kinds of mask, dropout.
#include <limits>

#include "autograd/ops.h"
#include "tests/cases/make.h"

namespace tapestry {
namespace {

struct Sizes {
  std::int64_t batch, queries, keys, heads, kv_heads, head_dim;
};

std::vector<Tensor> qkv(const Sizes& s) {
  const Shape kv{s.batch, s.keys, s.kv_heads, s.head_dim};
  return {normal({s.batch, s.queries, s.heads, s.head_dim}, 1), normal(kv, 2), normal(kv, 3)};
}

std::string text(const Sizes& s) {
  return text_of("B", s.batch, " Tq", s.queries, " Tk", s.keys, " H", s.heads,
                 s.heads == s.kv_heads ? std::string() : text_of("/", s.kv_heads), " D", s.head_dim);
}

Tensor lengths(const std::vector<std::int32_t>& values) {
  return from_values(values, {static_cast<std::int64_t>(values.size())});
}

void add(std::vector<Case>& cases, const std::string& what, const Sizes& s, const AttentionOptions& options) {
  cases.push_back(row(text_of("attention ", text(s), what), qkv(s),
                      [options](const Var& q, const Var& k, const Var& v) { return attention(q, k, v, options); }));
}

// A float mask that is an input of its own.
void add_bias(std::vector<Case>& cases, const Sizes& s, const Shape& mask, const AttentionOptions& options = {}) {
  std::vector<Tensor> inputs = qkv(s);
  inputs.push_back(normal(mask, 4));
  cases.push_back(row(
      text_of("attention ", text(s), " float mask ", mask, options.causal ? " causal" : ""), inputs,
      [options](const Var& q, const Var& k, const Var& v, const Var& m) { return attention(q, k, v, options, m); }));
}

// A captured mask in which query 1 sees nothing; as u8, or as a float mask of 0 and -inf with a small bias.
void add_hidden(std::vector<Case>& cases, const Sizes& s, bool as_float) {
  Tensor mask = zeros({s.queries, s.keys}, DType::f64);
  double* m = mask.mutable_data<double>();
  for (std::int64_t i = 0; i < mask.numel(); ++i) {
    const bool visible = i / s.keys != 1 && (i % 3 != 1 || s.keys == 1);
    m[i] = !as_float ? visible : visible ? 0.25 : -std::numeric_limits<double>::infinity();
  }
  if (!as_float) mask = mask.to(DType::u8);
  cases.push_back(row(text_of("attention ", text(s), as_float ? " -inf" : " u8", " mask"), qkv(s),
                      [mask, as_float](const Var& q, const Var& k, const Var& v) {
                        return attention(q, k, v, {}, Var(as_float ? mask.to(q.dtype()) : mask));
                      }));
}

void add_packed(std::vector<Case>& cases, const std::string& what, const Shape& shape, std::int64_t heads,
                const AttentionOptions& options) {
  cases.push_back(row(text_of("attention_packed ", shape, " heads ", heads, what), {normal(shape)},
                      [heads, options](const Var& x) { return attention_packed(x, heads, options); }));
}

}  // namespace

std::vector<Case> attention_cases() {
  const AttentionOptions causal{.causal = true};
  const AttentionOptions dropped{.causal = true, .dropout = 0.3, .dropout_key = case_key(3, 4)};
  std::vector<Case> cases;
  add(cases, "", {1, 1, 1, 1, 1, 1}, {});
  add(cases, "", {2, 3, 3, 2, 2, 3}, {});
  add(cases, " scale 0.3", {1, 2, 5, 2, 2, 5}, {.scale = 0.3});
  add(cases, " causal", {2, 4, 4, 2, 2, 3}, causal);
  add(cases, " causal", {1, 2, 5, 1, 1, 3}, causal);
  add(cases, " causal", {1, 5, 2, 1, 1, 3}, causal);
  add(cases, "", {1, 3, 3, 4, 2, 3}, {});
  add(cases, " causal", {1, 3, 4, 4, 1, 3}, causal);
  add(cases, "", {1, 31, 33, 1, 1, 3}, {});
  add(cases, " causal", {1, 33, 31, 2, 1, 5}, causal);
  add(cases, " lengths", {3, 3, 4, 2, 2, 3}, {.key_lengths = lengths({4, 2, 0})});
  add(cases, " lengths causal", {2, 4, 4, 1, 1, 3}, {.causal = true, .key_lengths = lengths({1, 3})});
  add(cases, " dropout", {2, 4, 4, 2, 2, 3}, dropped);
  add(cases, " causal", {2, 131, 131, 3, 3, 33}, causal);
  add(cases, " dropout", {1, 67, 129, 4, 2, 17}, dropped);
  add_bias(cases, {2, 3, 4, 2, 2, 3}, {2, 2, 3, 4});
  add_bias(cases, {2, 3, 4, 2, 2, 3}, {3, 4});
  add_bias(cases, {2, 3, 4, 4, 2, 3}, {4, 1, 4});
  add_bias(cases, {2, 3, 3, 2, 2, 3}, {2, 1, 1, 3}, causal);
  add_bias(cases, {2, 67, 65, 2, 2, 9}, {2, 67, 65}, causal);
  for (const bool as_float : {false, true}) {
    add_hidden(cases, {1, 3, 4, 2, 2, 3}, as_float);
    add_hidden(cases, {2, 33, 67, 2, 2, 5}, as_float);
  }

  add_packed(cases, "", {1, 1, 3}, 1, {});
  add_packed(cases, "", {2, 3, 18}, 2, {});
  add_packed(cases, " causal", {2, 5, 18}, 2, causal);
  add_packed(cases, " causal", {1, 33, 15}, 1, causal);
  add_packed(cases, " lengths", {2, 4, 18}, 3, {.key_lengths = lengths({4, 1})});
  add_packed(cases, " dropout", {2, 4, 18}, 3, dropped);
  add_packed(cases, " causal", {2, 131, 99}, 3, causal);
  cases.push_back(row("attention_packed [2, 3, 18] heads 2 float mask [2, 3, 3]",
                      {normal({2, 3, 18}), normal({2, 3, 3}, 2)},
                      [](const Var& x, const Var& mask) { return attention_packed(x, 2, {}, mask); }));
  return cases;
}

}  // namespace tapestry
