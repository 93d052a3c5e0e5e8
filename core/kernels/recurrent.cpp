// One pass each, row by row: a vector of every gate is read, combined in registers and written once.
#include "core/kernels/recurrent.h"

#include "core/kernels/rows.h"

namespace tapestry::cpu {

using simd::load_partial, simd::store_partial;

namespace {

// Gradients through sigmoid and tanh, from their results.
template <class A>
A through_sigmoid(A dy, A y) {
  return dy * y * (simd::Element<A>(1) - y);
}
template <class A>
A through_tanh(A dy, A y) {
  using T = simd::Element<A>;
  return dy * (T(1) - y) * (T(1) + y);
}

}  // namespace

void gru_forward(const Tensor& from_input, const Tensor& from_state, const Tensor& h, Tensor& gates, Tensor& h_next) {
  visit_float("gru", h.dtype(), [&]<class T>(TypeTag<T>) {
    const T *pa = from_input.data<T>(), *pb = from_state.data<T>(), *ph = h.data<T>();
    T *pgates = gates.mutable_data<T>(), *pnext = h_next.mutable_data<T>();
    const std::int64_t n = h.shape().back();
    parallel_rows(h.shape().rows(), 4 * n, [=](std::int64_t row) {
      const T *a = pa + row * 3 * n, *b = pb + row * 3 * n, *state = ph + row * n;
      T *gate = pgates + row * 4 * n, *next = pnext + row * n;
      for_each_vector<T>(n, [=](std::int64_t i, auto count) {
        const auto reset = simd::sigmoid(load_partial(a + i, count) + load_partial(b + i, count));
        const auto keep = simd::sigmoid(load_partial(a + n + i, count) + load_partial(b + n + i, count));
        const auto recalled = load_partial(b + 2 * n + i, count);
        const auto fresh = simd::tanh(load_partial(a + 2 * n + i, count) + reset * recalled);
        store_partial(gate + i, reset, count);
        store_partial(gate + n + i, keep, count);
        store_partial(gate + 2 * n + i, fresh, count);
        store_partial(gate + 3 * n + i, recalled, count);
        store_partial(next + i, fresh + keep * (load_partial(state + i, count) - fresh), count);
      });
    });
  });
}

void gru_backward(const Tensor& dh_next, const Tensor& gates, const Tensor& h, Grad dfrom_input, Grad dfrom_state,
                  Grad dh) {
  const bool add_input = dfrom_input && dfrom_input.claim(), add_state = dfrom_state && dfrom_state.claim(),
             add_h = dh && dh.claim();
  visit_float("gru_backward", h.dtype(), [&]<class T>(TypeTag<T>) {
    const T *pdy = dh_next.data<T>(), *pgates = gates.data<T>(), *ph = h.data<T>();
    T *pda = dfrom_input ? dfrom_input.data<T>() : nullptr, *pdb = dfrom_state ? dfrom_state.data<T>() : nullptr,
      *pdh = dh ? dh.data<T>() : nullptr;
    const std::int64_t n = h.shape().back();
    parallel_rows(h.shape().rows(), 4 * n, [=](std::int64_t row) {
      const T *dy = pdy + row * n, *gate = pgates + row * 4 * n, *state = ph + row * n;
      for_each_vector<T>(n, [=](std::int64_t i, auto count) {
        const auto reset = load_partial(gate + i, count), keep = load_partial(gate + n + i, count);
        const auto fresh = load_partial(gate + 2 * n + i, count), recalled = load_partial(gate + 3 * n + i, count);
        const auto g = load_partial(dy + i, count);
        const auto dfresh = through_tanh(g * (T(1) - keep), fresh);
        const auto dkeep = through_sigmoid(g * (load_partial(state + i, count) - fresh), keep);
        const auto dreset = through_sigmoid(dfresh * recalled, reset);
        if (pda) {
          T* da = pda + row * 3 * n + i;
          write_vector(da, dreset, count, add_input);
          write_vector(da + n, dkeep, count, add_input);
          write_vector(da + 2 * n, dfresh, count, add_input);
        }
        if (pdb) {
          T* db = pdb + row * 3 * n + i;
          write_vector(db, dreset, count, add_state);
          write_vector(db + n, dkeep, count, add_state);
          write_vector(db + 2 * n, dfresh * reset, count, add_state);
        }
        if (pdh) write_vector(pdh + row * n + i, g * keep, count, add_h);
      });
    });
  });
}

void lstm_forward(const Tensor& from_input, const Tensor& from_state, const Tensor& c, Tensor& gates, Tensor& o,
                  Tensor& c_next, Tensor& h_next) {
  visit_float("lstm", c.dtype(), [&]<class T>(TypeTag<T>) {
    const T *pa = from_input.data<T>(), *pb = from_state.data<T>(), *pc = c.data<T>();
    T *pgates = gates.mutable_data<T>(), *po = o.mutable_data<T>(), *pc_next = c_next.mutable_data<T>(),
      *ph_next = h_next.mutable_data<T>();
    const std::int64_t n = c.shape().back();
    parallel_rows(c.shape().rows(), 4 * n, [=](std::int64_t row) {
      const T *a = pa + row * 4 * n, *b = pb + row * 4 * n;
      T* gate = pgates + row * 3 * n;
      for_each_vector<T>(n, [=](std::int64_t i, auto count) {
        const auto map = [=](std::int64_t k) {
          return load_partial(a + k * n + i, count) + load_partial(b + k * n + i, count);
        };
        const auto input = simd::sigmoid(map(0)), forget = simd::sigmoid(map(1)), fresh = simd::tanh(map(2)),
                   output = simd::sigmoid(map(3));
        const auto next = forget * load_partial(pc + row * n + i, count) + input * fresh;
        store_partial(gate + i, input, count);
        store_partial(gate + n + i, forget, count);
        store_partial(gate + 2 * n + i, fresh, count);
        store_partial(po + row * n + i, output, count);
        store_partial(pc_next + row * n + i, next, count);
        store_partial(ph_next + row * n + i, output * simd::tanh(next), count);
      });
    });
  });
}

void lstm_backward(const Tensor& dh_next, const Tensor& dc_next, const Tensor& d_o, const Tensor& gates,
                   const Tensor& o, const Tensor& c, const Tensor& c_next, Tensor& dgates, Grad dc) {
  const bool add = dc && dc.claim();
  visit_float("lstm_backward", c.dtype(), [&]<class T>(TypeTag<T>) {
    const auto data_or_null = [](const Tensor& t) { return t ? t.data<T>() : nullptr; };
    const T *pdh = data_or_null(dh_next), *pdc_next = data_or_null(dc_next), *pdo = data_or_null(d_o);
    const T *pgates = gates.data<T>(), *po = o.data<T>(), *pc = c.data<T>(), *pc_next = c_next.data<T>();
    T *pdgates = dgates ? dgates.mutable_data<T>() : nullptr, *pdc = dc ? dc.data<T>() : nullptr;
    const std::int64_t n = c.shape().back();
    parallel_rows(c.shape().rows(), 4 * n, [=](std::int64_t row) {
      const T* gate = pgates + row * 3 * n;
      for_each_vector<T>(n, [=](std::int64_t i, auto count) {
        const std::int64_t at = row * n + i;
        // What did not arrive is left out, not multiplied by zero: c' may be infinite or NaN.
        simd::Vec<T> dcell{}, doutput{};
        if (pdc_next) dcell = load_partial(pdc_next + at, count);
        if (pdo) doutput = load_partial(pdo + at, count);
        const auto output = load_partial(po + at, count);
        if (pdh) {
          const auto dh = load_partial(pdh + at, count);
          const auto bounded = simd::tanh(load_partial(pc_next + at, count));
          dcell += through_tanh(dh * output, bounded);
          doutput += dh * bounded;
        }
        const auto forget = load_partial(gate + n + i, count);
        if (pdc) write_vector(pdc + at, dcell * forget, count, add);
        if (!pdgates) return;
        const auto input = load_partial(gate + i, count), fresh = load_partial(gate + 2 * n + i, count);
        T* to = pdgates + row * 4 * n + i;
        store_partial(to, through_sigmoid(dcell * fresh, input), count);
        store_partial(to + n, through_sigmoid(dcell * load_partial(pc + at, count), forget), count);
        store_partial(to + 2 * n, through_tanh(dcell * input, fresh), count);
        store_partial(to + 3 * n, through_sigmoid(doutput, output), count);
      });
    });
  });
}

}  // namespace tapestry::cpu
