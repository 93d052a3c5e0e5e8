// Attention on the CPU: blocks of kBlock queries against all keys that the last of them sees, so scores take
// kBlock * Tk elements of scratch per thread. Saved for backward: out and lse (see attention.h for the maths).
// Hidden scores are selected to -inf, and hidden P and dS to 0, whatever stands in q, k, v or dout; products with a
// factor that holds NaN or inf skip hidden positions one by one.
// Forward is parallel over (batch, head), backward over (batch, key-value head): every sum has one owner and one order.
// T is the type of scores, softmax and sums; E that of the factors of products: T, or bf16 where the processor
// multiplies it, with P and dS rounded to it. Other 16-bit tensors are converted to f32 block by block. Results are
// rounded once.
#include "core/kernels/attention.h"

#include "core/kernels/attention_rows.h"
#include "core/parallel.h"

namespace tapestry::cpu {
namespace {

using namespace attn;

constexpr std::int64_t kBlock = 48;  // queries handled together
static_assert(kBlock % kTileRows<float> == 0 && kBlock % kTileRows<BFloat16> == 0 && kBlock % kLanes<float> == 0);

// Hands out pieces of one pooled block.
class Scratch {
 public:
  explicit Scratch(std::int64_t bytes) : storage_(allocate(bytes)) {}
  template <class T>  // T is no larger than the type that the bytes were counted for
  void take(T*& piece, std::int64_t elements) {
    piece = reinterpret_cast<T*>(storage_.data() + used_);
    used_ += elements * static_cast<std::int64_t>(sizeof(T));
  }

 private:
  static Storage allocate(std::int64_t bytes) {
    const MemoryScope scope(MemoryCategory::workspace);
    return Storage(std::max<std::int64_t>(1, bytes));
  }
  Storage storage_;
  std::int64_t used_ = 0;
};

// ---- forward

template <class T, class E>
struct ForwardBuffers {
  E *keys_t, *values, *rows, *weights;
  T *scores, *factors, *sums;
  explicit ForwardBuffers(const Call<T>& call)
      : ForwardBuffers(call, call.template packed<E>(), call.template block<E>(kBlock), call.score_stride) {}

 private:
  ForwardBuffers(const Call<T>& call, std::int64_t packed, std::int64_t block, std::int64_t row)
      : scratch((3 * packed + 2 * block + (2 * kBlock + 1) * row) * static_cast<std::int64_t>(sizeof(T))) {
    for (E** whole : {&keys_t, &values}) scratch.take(*whole, packed);
    scratch.take(rows, std::max(packed, block));
    scratch.take(weights, kBlock * row);
    scratch.take(scores, kBlock * row);
    scratch.take(factors, row);
    scratch.take(sums, kBlock * call.width);
  }
  Scratch scratch;
};

template <class T, class E>
void forward_head(const Call<T>& call, std::int64_t b, std::int64_t h, const Right<E>& keys_t,
                  const PackedRows<E>& values, const ForwardBuffers<T, E>& buffers, const Target<T>& out, T* lse) {
  const AttentionProblem& p = call.problem;
  const Visibility<T> sees = call.visibility(b, h);
  for (std::int64_t first = 0; first < call.queries; first += kBlock) {
    const std::int64_t rows = std::min(kBlock, call.queries - first);
    const std::int64_t columns = whole_vectors<T>(sees.limit(first + rows - 1));
    const Rows<E> q = call.q.rows(p.q.at(b, first, h), p.q.stride_time, rows, call.dim, buffers.rows);
    out.prefetch(p.out.at(b, first, h), p.out.stride_time, rows, call.dim);
    call.multiply_keys(q, first, rows, sees, keys_t, buffers.scores);
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
        rows, call.dim, left_factor(buffers.scores, rows, columns, call.score_stride, buffers.weights), values,
        buffers.sums, call.width, false,
        [&](std::int64_t, std::int64_t last) {
          return Extent{0, sees.limit(first + last), call.width};
        },
        [&](std::int64_t r, std::int64_t j) { return sees(first + r, j); });
    for (std::int64_t r = 0; r < rows; ++r)
      out.write(1, call.dim, sum[r] == 0 ? T(0) : 1 / sum[r], buffers.sums + r * call.width, 0,
                p.out.at(b, first + r, h), 0);
  }
}

template <class T, class E>
void forward(const Call<T>& call, const Target<T>& out, T* lse) {
  const AttentionProblem& p = call.problem;
  parallel_for(p.batch * p.heads, call.grain(), [&](std::int64_t begin, std::int64_t end) {
    const ForwardBuffers<T, E> buffers(call);
    Right<E> keys_t;
    PackedRows<E> values;
    for (std::int64_t pair = begin; pair < end; ++pair) {
      const std::int64_t b = pair / p.heads, h = pair % p.heads, kv = h / call.group;
      if (pair == begin || h % call.group == 0) {
        const std::int64_t reach = call.reach(b);
        keys_t = pack_columns(call.k.rows(p.k.at(b, 0, kv), p.k.stride_time, reach, call.dim, buffers.rows), reach,
                              call.dim, buffers.keys_t);
        values = pack_rows(call.v.rows(p.v.at(b, 0, kv), p.v.stride_time, reach, call.dim, buffers.rows), reach,
                           call.dim, buffers.values);
      }
      forward_head(call, b, h, keys_t, values, buffers, out, lse);
    }
  });
}

// ---- backward

template <class T, class E>
struct BackwardBuffers {
  E *keys_t, *values_t, *keys, *rows, *dout_rows, *weights_t, *dscores_e, *dscores_t, *q, *dout;
  T *dk, *dv, *weights, *dscores, *factors, *dq;
  explicit BackwardBuffers(const Call<T>& call)
      : BackwardBuffers(call, call.template packed<E>(), call.template block<E>(kBlock), call.score_stride) {}

 private:
  BackwardBuffers(const Call<T>& call, std::int64_t packed, std::int64_t block, std::int64_t row)
      : scratch((6 * packed + 5 * block + (5 * kBlock + 1) * row) * static_cast<std::int64_t>(sizeof(T))) {
    for (E** whole : {&keys_t, &values_t, &keys}) scratch.take(*whole, packed);
    for (T** whole : {&dk, &dv}) scratch.take(*whole, packed);
    scratch.take(rows, std::max(packed, block));
    for (E** rows_of : {&dout_rows, &q, &dout}) scratch.take(*rows_of, block);
    scratch.take(dq, kBlock * call.width);
    for (T** scores : {&weights, &dscores}) scratch.take(*scores, kBlock * row);
    for (E** scores : {&weights_t, &dscores_e, &dscores_t}) scratch.take(*scores, kBlock * row);
    scratch.take(factors, row);
  }
  Scratch scratch;
};

template <class T>
struct BackwardCall : Call<T> {
  Stored dout, out;
  const T* lse;
  Target<T> dq, dk, dv;
  T* dmask = nullptr;
};

// rowsum(dout o out) of a block of queries.
template <class T>
void output_products(const BackwardCall<T>& call, std::int64_t b, std::int64_t h, std::int64_t first, std::int64_t rows,
                     T* delta) {
  const HeadsView& view = call.problem.out;
  visit_stored<T>(call.out.dtype, [&]<class S>(TypeTag<S>) {
    const S *dout = reinterpret_cast<const S*>(call.dout.data), *out = reinterpret_cast<const S*>(call.out.data);
    for (std::int64_t r = 0; r < rows; ++r) {
      const std::int64_t at = view.at(b, first + r, h);
      delta[r] = dot(dout + at, out + at, call.dim);
    }
  });
}

// The weights and dS of a block of queries; dS also goes into dmask.
template <class T, class E>
void differentiate_scores(const BackwardCall<T>& call, const Visibility<T>& sees, std::int64_t b, std::int64_t h,
                          std::int64_t first, std::int64_t rows, const BackwardBuffers<T, E>& buffers) {
  const AttentionProblem& p = call.problem;
  const std::int64_t columns = whole_vectors<T>(sees.limit(first + rows - 1));
  T delta[kBlock];
  output_products(call, b, h, first, rows, delta);
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t i = first + r, count = sees.limit(i);
    T* weights = buffers.weights + r * call.score_stride;
    T* dscores = buffers.dscores + r * call.score_stride;
    sees.finish(i, call.scale, weights);
    const bool drop = p.options.dropout > 0;
    if (drop) call.dropout_factors(call.row(b, h, i), count, buffers.factors);
    differentiate_row(call.lse[call.row(b, h, i)], delta[r], drop ? buffers.factors : nullptr, count, columns, weights,
                      dscores);
    if (call.dmask) {
      T* dmask = call.dmask + call.mask_offset(b, h) + i * p.mask_stride[2];
      for (std::int64_t j = 0; j < count; ++j) dmask[j * p.mask_stride[3]] += dscores[j];
    }
  }
}

// One query head: writes its dq, adds to the dk and dv of its group.
template <class T, class E>
void backward_head(const BackwardCall<T>& call, std::int64_t b, std::int64_t h, const Right<E>& keys_t,
                   const Right<E>& values_t, const PackedRows<E>& keys, const BackwardBuffers<T, E>& buffers) {
  const AttentionProblem& p = call.problem;
  const Visibility<T> sees = call.visibility(b, h);
  for (std::int64_t first = 0; first < call.queries; first += kBlock) {
    const std::int64_t rows = std::min(kBlock, call.queries - first), reach = sees.limit(first + rows - 1);
    const std::int64_t columns = whole_vectors<T>(reach);
    const Rows<E> q = call.q.rows(p.q.at(b, first, h), p.q.stride_time, rows, call.dim, buffers.rows);
    const Rows<E> dout = call.dout.rows(p.out.at(b, first, h), p.out.stride_time, rows, call.dim, buffers.dout_rows);
    call.out.prefetch(p.out.at(b, first, h), p.out.stride_time, rows, call.dim);
    call.multiply_keys(q, first, rows, sees, keys_t, buffers.weights);
    call.dq.prefetch(p.q.at(b, first, h), p.q.stride_time, rows, call.dim);
    if (call.dq || call.dk || call.dmask) call.multiply_keys(dout, first, rows, sees, values_t, buffers.dscores);
    differentiate_scores(call, sees, b, h, first, rows, buffers);

    if (call.dq) {
      weighted_sum(
          rows, call.dim, left_factor(buffers.dscores, rows, columns, call.score_stride, buffers.dscores_e), keys,
          buffers.dq, call.width, false,
          [&](std::int64_t, std::int64_t last) {
            return Extent{0, sees.limit(first + last), call.width};
          },
          [&](std::int64_t r, std::int64_t j) { return sees(first + r, j); });
      call.dq.write(rows, call.dim, call.scale, buffers.dq, call.width, p.q.at(b, first, h), p.q.stride_time);
    }
    const auto queries_of = [&](std::int64_t key, std::int64_t) {
      return Extent{std::max<std::int64_t>(0, sees.first_query(key) - first), rows, call.width};
    };
    const auto seen_by = [&](std::int64_t j, std::int64_t r) { return sees(first + r, j); };
    if (call.dk)
      weighted_sum(reach, call.dim,
                   left_transposed(buffers.dscores, rows, columns, call.score_stride, buffers.dscores_t),
                   pack_rows(q, rows, call.dim, buffers.q), buffers.dk, call.width, true, queries_of, seen_by);
    if (call.dv)
      weighted_sum(reach, call.dim,
                   left_transposed(buffers.weights, rows, columns, call.score_stride, buffers.weights_t),
                   pack_rows(dout, rows, call.dim, buffers.dout), buffers.dv, call.width, true, queries_of, seen_by);
  }
}

// All query heads that share one key-value head, in order.
template <class T, class E>
void backward_group(const BackwardCall<T>& call, std::int64_t b, std::int64_t kv,
                    const BackwardBuffers<T, E>& buffers) {
  const AttentionProblem& p = call.problem;
  const std::int64_t reach = call.reach(b), sums = call.template packed<E>();
  const Rows<E> k = call.k.rows(p.k.at(b, 0, kv), p.k.stride_time, reach, call.dim, buffers.rows);
  const Right<E> keys_t = pack_columns(k, reach, call.dim, buffers.keys_t);
  const PackedRows<E> keys = pack_rows(k, reach, call.dim, buffers.keys);
  const Rows<E> v = call.v.rows(p.v.at(b, 0, kv), p.v.stride_time, reach, call.dim, buffers.rows);
  const Right<E> values_t = pack_columns(v, reach, call.dim, buffers.values_t);
  std::fill_n(buffers.dk, sums, T(0));
  std::fill_n(buffers.dv, sums, T(0));
  for (std::int64_t h = kv * call.group; h < (kv + 1) * call.group; ++h)
    backward_head(call, b, h, keys_t, values_t, keys, buffers);
  call.dv.prefetch(p.v.at(b, 0, kv), p.v.stride_time, call.keys, call.dim);
  if (call.dk)
    call.dk.write(call.keys, call.dim, call.scale, buffers.dk, call.width, p.k.at(b, 0, kv), p.k.stride_time);
  if (call.dv) call.dv.write(call.keys, call.dim, T(1), buffers.dv, call.width, p.v.at(b, 0, kv), p.v.stride_time);
}

template <class T, class E>
void backward(const BackwardCall<T>& call) {
  const AttentionProblem& p = call.problem;
  // Groups that add to the same elements of dmask stay in one task, in order.
  const bool one_batch = call.dmask && p.mask_stride[0] == 0, one_head = call.dmask && p.mask_stride[1] == 0;
  const std::int64_t batch_tasks = one_batch ? 1 : p.batch, head_tasks = one_head ? 1 : p.kv_heads;
  const std::int64_t batches = p.batch / std::max<std::int64_t>(1, batch_tasks), heads = p.kv_heads / head_tasks;
  parallel_for(batch_tasks * head_tasks, call.grain(), [&](std::int64_t begin, std::int64_t end) {
    const BackwardBuffers<T, E> buffers(call);
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
  TAP_CHECK(!mask || mask.dtype() == DType::u8 || mask.dtype() == q.dtype() || mask.dtype() == lse.dtype(),
            "attention: the mask must be u8, ", lse.dtype(), " or ", q.dtype(), " like q, not ", mask.dtype());
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

// Calls f with the types of scores and of factors.
template <class F>
void visit_types(DType dtype, F&& f) {
  if (dtype == DType::f64) return f(TypeTag<double>(), TypeTag<double>());
  if constexpr (kHasPairs)
    if (dtype == DType::bf16) return f(TypeTag<float>(), TypeTag<BFloat16>());
  TAP_CHECK(is_floating(dtype), "attention: needs floating-point numbers, not ", dtype);
  f(TypeTag<float>(), TypeTag<float>());
}

}  // namespace

void attention_forward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask,
                       const AttentionProblem& problem, Tensor& out, Tensor& lse) {
  check(q, k, v, mask, out, lse, problem);
  tapestry::detail::Widened<const Tensor&> wide_mask(mask);
  visit_types(q.dtype(), [&]<class T, class E>(TypeTag<T>, TypeTag<E>) {
    forward<T, E>(Call<T>(problem, q, k, v, wide_mask.get()), Target<T>(out), lse.mutable_data<T>());
  });
}

void attention_backward(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask,
                        const Tensor& out, const Tensor& lse, const AttentionProblem& problem, HeadsGrad dq,
                        HeadsGrad dk, HeadsGrad dv, Grad dmask) {
  check(q, k, v, mask, out, lse, problem);
  check_view("dout", problem.out, problem.heads, problem, dout);
  TAP_CHECK(dout.dtype() == q.dtype(), "attention: dout must be ", q.dtype(), " like q, not ", dout.dtype());
  TAP_CHECK(!dmask || (mask && mask.dtype() != DType::u8), "attention: only a float mask has a gradient");
  tapestry::detail::Widened<const Tensor&> wide_mask(mask);
  tapestry::detail::Widened<Grad> wide_dmask(dmask);
  visit_types(q.dtype(), [&]<class T, class E>(TypeTag<T>, TypeTag<E>) {
    BackwardCall<T> call{Call<T>(problem, q, k, v, wide_mask.get()),
                         Stored(dout),
                         Stored(out),
                         lse.data<T>(),
                         Target<T>(dq),
                         Target<T>(dk),
                         Target<T>(dv)};
    if (dmask) {
      const Grad grad = wide_dmask.get();
      const bool add = grad.claim();
      call.dmask = grad.data<T>();
      if (!add) std::fill_n(call.dmask, grad.shape().numel(), T(0));
    }
    if (call.dq || call.dk || call.dv || call.dmask) backward<T, E>(call);
  });
  wide_dmask.finish();
}

}  // namespace tapestry::cpu
