// Attention on the CPU: blocks of kBlock queries against all keys that the last of them sees, so scores take
// kBlock * Tk elements of scratch per thread. Saved for backward: out and lse (see attention.h for the maths).
// Hidden scores are selected to -inf, and hidden P and dS to 0, whatever stands in q, k, v or dout; products with a
// factor that holds NaN or inf skip hidden positions one by one.
// Forward is parallel over (batch, head), backward over (batch, key-value head): every sum has one owner and one order.
#include "core/kernels/attention.h"

#include "core/kernels/attention_rows.h"
#include "core/parallel.h"

namespace tapestry::cpu {
namespace {

using namespace attn;

constexpr std::int64_t kBlock = 48;  // queries handled together
static_assert(kBlock % kTileRows == 0 && kBlock % kLanes<float> == 0);

// Hands out pieces of one pooled block.
template <class T>
class Scratch {
 public:
  explicit Scratch(std::int64_t elements) : storage_(allocate(elements)) {}
  T* take(std::int64_t elements) {
    T* piece = reinterpret_cast<T*>(storage_.data()) + used_;
    used_ += elements;
    return piece;
  }

 private:
  static Storage allocate(std::int64_t elements) {
    const MemoryScope scope(MemoryCategory::workspace);
    return Storage(std::max<std::int64_t>(1, elements) * static_cast<std::int64_t>(sizeof(T)));
  }
  Storage storage_;
  std::int64_t used_ = 0;
};

// ---- forward

template <class T>
struct ForwardBuffers {
  T *keys_t, *values, *scores, *sums, *factors;
  explicit ForwardBuffers(const Call<T>& call)
      : scratch(2 * call.packed() + (kBlock + 1) * call.score_stride + kBlock * call.width) {
    keys_t = scratch.take(call.packed());
    values = scratch.take(call.packed());
    scores = scratch.take(kBlock * call.score_stride);
    factors = scratch.take(call.score_stride);
    sums = scratch.take(kBlock * call.width);
  }
  Scratch<T> scratch;
};

template <class T>
void forward_head(const Call<T>& call, std::int64_t b, std::int64_t h, const Right<T>& keys_t,
                  const PackedRows<T>& values, const ForwardBuffers<T>& buffers, T* out, T* lse) {
  const AttentionProblem& p = call.problem;
  const Visibility<T> sees = call.visibility(b, h);
  for (std::int64_t first = 0; first < call.queries; first += kBlock) {
    const std::int64_t rows = std::min(kBlock, call.queries - first);
    const std::int64_t columns = whole_vectors<T>(sees.limit(first + rows - 1));
    call.multiply_keys(call.q + p.q.at(b, first, h), p.q.stride_time, first, rows, sees, keys_t, buffers.scores);
    T sum[kBlock] = {}, largest[kBlock] = {}, row_lse[kBlock];
    for (std::int64_t r = 0; r < rows; ++r) {
      const std::int64_t i = first + r, count = sees.limit(i);
      T* row = buffers.scores + r * call.score_stride;
      sees.finish(i, call.scale, row);
      const RowSum<T> result = exponentiate_row(row, count, columns);
      sum[r] = result.sum;
      largest[r] = result.largest;
      if (p.options.dropout > 0) {
        call.dropout_factors(call.row(b, h, i), count, buffers.factors);
        for (std::int64_t j = 0; j < count; ++j) row[j] *= buffers.factors[j];
      }
    }
    for (std::int64_t r = 0; r < kBlock; r += kLanes<T>)
      simd::store(row_lse + r, simd::load(largest + r) + simd::log(simd::load(sum + r)));
    std::copy_n(row_lse, rows, lse + call.row(b, h, first));
    weighted_sum(
        rows, call.dim, Left<T>{buffers.scores, call.score_stride, 1}, values, buffers.sums, call.width, false,
        [&](std::int64_t, std::int64_t last) {
          return Extent{0, sees.limit(first + last), call.width};
        },
        [&](std::int64_t r, std::int64_t j) { return sees(first + r, j); });
    for (std::int64_t r = 0; r < rows; ++r)
      write_rows(1, call.dim, sum[r] == 0 ? T(0) : 1 / sum[r], buffers.sums + r * call.width, 0,
                 out + p.out.at(b, first + r, h), 0, false);
  }
}

template <class T>
void forward(const Call<T>& call, T* out, T* lse) {
  const AttentionProblem& p = call.problem;
  parallel_for(p.batch * p.heads, call.grain(), [&](std::int64_t begin, std::int64_t end) {
    const ForwardBuffers<T> buffers(call);
    Right<T> keys_t;
    PackedRows<T> values;
    for (std::int64_t pair = begin; pair < end; ++pair) {
      const std::int64_t b = pair / p.heads, h = pair % p.heads, kv = h / call.group;
      if (pair == begin || h % call.group == 0) {
        const std::int64_t reach = call.reach(b);
        keys_t = pack_columns(call.k + p.k.at(b, 0, kv), p.k.stride_time, reach, call.dim, buffers.keys_t);
        values = pack_rows(call.v + p.v.at(b, 0, kv), p.v.stride_time, reach, call.dim, buffers.values);
      }
      forward_head(call, b, h, keys_t, values, buffers, out, lse);
    }
  });
}

// ---- backward

template <class T>
struct BackwardBuffers {
  T *keys_t, *values_t, *keys, *dk, *dv, *weights, *dscores, *factors, *q, *dout, *dq;
  explicit BackwardBuffers(const Call<T>& call)
      : scratch(5 * call.packed() + (2 * kBlock + 1) * call.score_stride + 3 * kBlock * call.width) {
    for (T** whole : {&keys_t, &values_t, &keys, &dk, &dv}) *whole = scratch.take(call.packed());
    weights = scratch.take(kBlock * call.score_stride);
    dscores = scratch.take(kBlock * call.score_stride);
    factors = scratch.take(call.score_stride);
    for (T** block : {&q, &dout, &dq}) *block = scratch.take(kBlock * call.width);
  }
  Scratch<T> scratch;
};

// Where a gradient goes; data is null where nobody wants it.
template <class T>
struct Target {
  T* data = nullptr;
  bool add = false;
  explicit Target(const HeadsGrad& g) : data(g.grad ? g.grad.template data<T>() : nullptr), add(g.add) {}
};

template <class T>
struct BackwardCall : Call<T> {
  const T *dout, *out, *lse;
  Target<T> dq, dk, dv;
  T* dmask = nullptr;
};

// The weights and dS of a block of queries; dS also goes into dmask.
template <class T>
void differentiate_scores(const BackwardCall<T>& call, const Visibility<T>& sees, std::int64_t b, std::int64_t h,
                          std::int64_t first, std::int64_t rows, const BackwardBuffers<T>& buffers) {
  const AttentionProblem& p = call.problem;
  const std::int64_t columns = whole_vectors<T>(sees.limit(first + rows - 1));
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t i = first + r, count = sees.limit(i);
    T* weights = buffers.weights + r * call.score_stride;
    T* dscores = buffers.dscores + r * call.score_stride;
    sees.finish(i, call.scale, weights);
    const bool drop = p.options.dropout > 0;
    if (drop) call.dropout_factors(call.row(b, h, i), count, buffers.factors);
    const std::int64_t at = p.out.at(b, i, h);
    const T delta = dot(call.dout + at, call.out + at, call.dim);
    differentiate_row(call.lse[call.row(b, h, i)], delta, drop ? buffers.factors : nullptr, count, columns, weights,
                      dscores);
    if (call.dmask) {
      T* dmask = call.dmask + call.mask_offset(b, h) + i * p.mask_stride[2];
      for (std::int64_t j = 0; j < count; ++j) dmask[j * p.mask_stride[3]] += dscores[j];
    }
  }
}

// One query head: writes its dq, adds to the dk and dv of its group.
template <class T>
void backward_head(const BackwardCall<T>& call, std::int64_t b, std::int64_t h, const Right<T>& keys_t,
                   const Right<T>& values_t, const PackedRows<T>& keys, const BackwardBuffers<T>& buffers) {
  const AttentionProblem& p = call.problem;
  const Visibility<T> sees = call.visibility(b, h);
  const Left<T> weights_t{buffers.weights, 1, call.score_stride}, dscores_t{buffers.dscores, 1, call.score_stride};
  for (std::int64_t first = 0; first < call.queries; first += kBlock) {
    const std::int64_t rows = std::min(kBlock, call.queries - first), reach = sees.limit(first + rows - 1);
    const T* q = call.q + p.q.at(b, first, h);
    const T* dout = call.dout + p.out.at(b, first, h);
    call.multiply_keys(q, p.q.stride_time, first, rows, sees, keys_t, buffers.weights);
    if (call.dq.data || call.dk.data || call.dmask)
      call.multiply_keys(dout, p.out.stride_time, first, rows, sees, values_t, buffers.dscores);
    differentiate_scores(call, sees, b, h, first, rows, buffers);

    if (call.dq.data) {
      weighted_sum(
          rows, call.dim, Left<T>{buffers.dscores, call.score_stride, 1}, keys, buffers.dq, call.width, false,
          [&](std::int64_t, std::int64_t last) {
            return Extent{0, sees.limit(first + last), call.width};
          },
          [&](std::int64_t r, std::int64_t j) { return sees(first + r, j); });
      write_rows(rows, call.dim, call.scale, buffers.dq, call.width, call.dq.data + p.q.at(b, first, h),
                 p.q.stride_time, call.dq.add);
    }
    const auto queries_of = [&](std::int64_t key, std::int64_t) {
      return Extent{std::max<std::int64_t>(0, sees.first_query(key) - first), rows, call.width};
    };
    const auto seen_by = [&](std::int64_t j, std::int64_t r) { return sees(first + r, j); };
    if (call.dk.data) {
      const PackedRows<T> packed = pack_rows(q, p.q.stride_time, rows, call.dim, buffers.q);
      weighted_sum(reach, call.dim, dscores_t, packed, buffers.dk, call.width, true, queries_of, seen_by);
    }
    if (call.dv.data) {
      const PackedRows<T> packed = pack_rows(dout, p.out.stride_time, rows, call.dim, buffers.dout);
      weighted_sum(reach, call.dim, weights_t, packed, buffers.dv, call.width, true, queries_of, seen_by);
    }
  }
}

// All query heads that share one key-value head, in order.
template <class T>
void backward_group(const BackwardCall<T>& call, std::int64_t b, std::int64_t kv, const BackwardBuffers<T>& buffers) {
  const AttentionProblem& p = call.problem;
  const std::int64_t reach = call.reach(b);
  const T* k = call.k + p.k.at(b, 0, kv);
  const Right<T> keys_t = pack_columns(k, p.k.stride_time, reach, call.dim, buffers.keys_t);
  const PackedRows<T> keys = pack_rows(k, p.k.stride_time, reach, call.dim, buffers.keys);
  const Right<T> values_t = pack_columns(call.v + p.v.at(b, 0, kv), p.v.stride_time, reach, call.dim, buffers.values_t);
  std::fill_n(buffers.dk, call.packed(), T(0));
  std::fill_n(buffers.dv, call.packed(), T(0));
  for (std::int64_t h = kv * call.group; h < (kv + 1) * call.group; ++h)
    backward_head(call, b, h, keys_t, values_t, keys, buffers);
  if (call.dk.data)
    write_rows(call.keys, call.dim, call.scale, buffers.dk, call.width, call.dk.data + p.k.at(b, 0, kv),
               p.k.stride_time, call.dk.add);
  if (call.dv.data)
    write_rows(call.keys, call.dim, T(1), buffers.dv, call.width, call.dv.data + p.v.at(b, 0, kv), p.v.stride_time,
               call.dv.add);
}

template <class T>
void backward(const BackwardCall<T>& call) {
  const AttentionProblem& p = call.problem;
  // Groups that add to the same elements of dmask stay in one task, in order.
  const bool one_batch = call.dmask && p.mask_stride[0] == 0, one_head = call.dmask && p.mask_stride[1] == 0;
  const std::int64_t batch_tasks = one_batch ? 1 : p.batch, head_tasks = one_head ? 1 : p.kv_heads;
  const std::int64_t batches = p.batch / std::max<std::int64_t>(1, batch_tasks), heads = p.kv_heads / head_tasks;
  parallel_for(batch_tasks * head_tasks, call.grain(), [&](std::int64_t begin, std::int64_t end) {
    const BackwardBuffers<T> buffers(call);
    for (std::int64_t task = begin; task < end; ++task) {
      const std::int64_t first_batch = task / head_tasks * batches, first_head = task % head_tasks * heads;
      for (std::int64_t b = first_batch; b < first_batch + batches; ++b)
        for (std::int64_t kv = first_head; kv < first_head + heads; ++kv) backward_group(call, b, kv, buffers);
    }
  });
}

// ---- checks

void check_view(std::string_view name, const HeadsView& view, std::int64_t heads, const AttentionProblem& p,
                const Tensor& t) {
  if (p.batch * heads * view.length * p.head_dim == 0) return;
  const std::int64_t last = view.at(p.batch - 1, view.length - 1, heads - 1) + p.head_dim;
  TAP_CHECK(
      view.offset >= 0 && view.stride_batch >= 0 && view.stride_time >= 0 && view.stride_head >= 0 && last <= t.numel(),
      "attention: the view of ", name, " must lie inside its tensor, but reaches element ", last, " of ", t.shape());
}

void check(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask, const Tensor& out, const Tensor& lse,
           const AttentionProblem& p) {
  TAP_CHECK(p.kv_heads > 0 && p.heads % p.kv_heads == 0, "attention: the number of query heads must be a multiple of ",
            "the number of key-value heads, not ", p.heads, " and ", p.kv_heads);
  TAP_CHECK(k.dtype() == q.dtype() && v.dtype() == q.dtype() && out.dtype() == q.dtype(),
            "attention: q, k, v and out must have one dtype, not ", q.dtype(), ", ", k.dtype(), ", ", v.dtype(),
            " and ", out.dtype());
  TAP_CHECK(!mask || mask.dtype() == DType::u8 || mask.dtype() == q.dtype(), "attention: the mask must be u8 or ",
            q.dtype(), " like q, not ", mask.dtype());
  TAP_CHECK(p.k.length == p.v.length && p.q.length == p.out.length,
            "attention: k and v, and q and out, must have equal lengths, not ", p.k.length, " and ", p.v.length, ", ",
            p.q.length, " and ", p.out.length);
  TAP_CHECK(!p.options.key_lengths ||
                (p.options.key_lengths.dtype() == DType::i32 && p.options.key_lengths.numel() == p.batch),
            "attention: key_lengths must be i32 [", p.batch, "]");
  TAP_CHECK(lse.dtype() == accumulate_dtype(q.dtype()) && lse.numel() == p.batch * p.heads * p.q.length,
            "attention: lse must hold one ", accumulate_dtype(q.dtype()), " per batch, head and query");
  const std::int64_t extent[4] = {p.batch, p.heads, p.q.length, p.k.length};
  std::int64_t last = 0;
  for (int axis = 0; axis < 4; ++axis) last += std::max<std::int64_t>(0, extent[axis] - 1) * p.mask_stride[axis];
  TAP_CHECK(!mask || mask.numel() == 0 || last < mask.numel(), "attention: the mask strides reach element ", last,
            " of ", mask.shape());
  check_view("q", p.q, p.heads, p, q);
  check_view("k", p.k, p.kv_heads, p, k);
  check_view("v", p.v, p.kv_heads, p, v);
  check_view("out", p.out, p.heads, p, out);
}

}  // namespace

void attention_forward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask,
                       const AttentionProblem& problem, Tensor& out, Tensor& lse) {
  check(q, k, v, mask, out, lse, problem);
  visit_float("attention", q.dtype(), [&]<class T>(TypeTag<T>) {
    forward(Call<T>(problem, q, k, v, mask), out.mutable_data<T>(), lse.mutable_data<T>());
  });
}

void attention_backward(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask,
                        const Tensor& out, const Tensor& lse, const AttentionProblem& problem, HeadsGrad dq,
                        HeadsGrad dk, HeadsGrad dv, Grad dmask) {
  check(q, k, v, mask, out, lse, problem);
  check_view("dout", problem.out, problem.heads, problem, dout);
  TAP_CHECK(!dmask || (mask && mask.dtype() == q.dtype()), "attention: only a float mask has a gradient");
  visit_float("attention", q.dtype(), [&]<class T>(TypeTag<T>) {
    BackwardCall<T> call{Call<T>(problem, q, k, v, mask),
                         dout.data<T>(),
                         out.data<T>(),
                         lse.data<T>(),
                         Target<T>(dq),
                         Target<T>(dk),
                         Target<T>(dv)};
    if (dmask) {
      const bool add = dmask.claim();
      call.dmask = dmask.data<T>();
      if (!add) std::fill_n(call.dmask, dmask.shape().numel(), T(0));
    }
    if (call.dq.data || call.dk.data || call.dv.data || call.dmask) backward(call);
  });
}

}  // namespace tapestry::cpu
