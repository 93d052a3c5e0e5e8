// Forward copies rows. Backward gives each thread a block of columns and walks all positions in order, so the sums of
// repeated ids come out the same for any number of threads. Nothing is saved but the ids.
#include "core/kernels/embedding.h"

#include "core/kernels/ids.h"
#include "core/kernels/rows.h"

namespace tapestry::cpu {

namespace {

void check_ids(const char* op, const Ids& ids, std::int64_t count, std::int64_t table_rows) {
  for (std::int64_t i = 0; i < count; ++i)
    TAP_CHECK(ids[i] >= 0 && ids[i] < table_rows, op, ": id ", ids[i], " at flat position ", i, " must be in [0, ",
              table_rows, "); use a tokenizer that fits the table, or a table with more rows");
}

}  // namespace

void embedding_forward(const Tensor& table, const Tensor& ids, Tensor& y) {
  const Ids id("embedding", "ids", ids);
  check_ids("embedding", id, ids.numel(), table.shape()[0]);
  TAP_CHECK(y.dtype() == table.dtype(), "embedding: y must be ", table.dtype(), " like the table, not ", y.dtype());
  const std::int64_t width_bytes = table.shape().back() * size_of(table.dtype());
  const std::byte* from = table.raw_data();
  std::byte* to = y.mutable_raw_data();
  parallel_rows(ids.numel(), table.shape().back(), [=](std::int64_t i) {
    std::memcpy(to + i * width_bytes, from + id[i] * width_bytes, static_cast<std::size_t>(width_bytes));
  });
}

void embedding_backward(const Tensor& dy, const Tensor& ids, std::int64_t padding_id, Grad dtable) {
  if (!dtable) return;
  const Ids id("embedding_backward", "ids", ids);
  const std::int64_t count = ids.numel(), table_rows = dtable.shape()[0], width = dtable.shape().back();
  check_ids("embedding_backward", id, count, table_rows);
  const bool add = dtable.claim();

  visit_float("embedding_backward", dy.dtype(), [&]<class T>(TypeTag<T>) {
    constexpr std::int64_t kBlock = 64 / sizeof(T);  // a cache line of columns
    const T* pdy = dy.data<T>();
    T* table = dtable.data<T>();
    const std::int64_t rows_touched = count + (add ? 0 : table_rows);
    parallel_for((width + kBlock - 1) / kBlock, grain_for(rows_touched * kBlock),
                 [=](std::int64_t begin, std::int64_t end) {
                   const std::int64_t first = begin * kBlock, columns = std::min(end * kBlock, width) - first;
                   if (!add)
                     for (std::int64_t row = 0; row < table_rows; ++row)
                       std::fill_n(table + row * width + first, columns, T(0));
                   for (std::int64_t i = 0; i < count; ++i) {
                     if (id[i] == padding_id) continue;
                     const T* source = pdy + i * width + first;
                     T* target = table + id[i] * width + first;
                     for (std::int64_t c = 0; c < columns; ++c) target[c] += source[c];
                   }
                 });
  });
}

}  // namespace tapestry::cpu
