#include "core/kernels/embedding.h"

#include "autograd/ops.h"

namespace tapestry {

Var embedding(const Var& table, const Tensor& ids, std::int64_t padding_id) {
  const Shape& s = ids.shape();
  TAP_CHECK(table.shape().rank() == 2, "embedding: the table must be [V, C], not ", table.shape());
  TAP_CHECK(ids.dtype() == DType::i32 || ids.dtype() == DType::i64, "embedding: ids must be i32 or i64, not ",
            ids.dtype());
  TAP_CHECK(padding_id >= -1 && padding_id < table.shape()[0], "embedding: padding_id must be -1 or a row of ",
            table.shape(), ", not ", padding_id);
  TAP_CHECK(s.rank() < Shape::kMaxRank, "embedding: ids may have rank ", Shape::kMaxRank - 1, " at most, not ", s);
  std::array<std::int64_t, Shape::kMaxRank> dims{};
  std::copy(s.dims().begin(), s.dims().end(), dims.begin());
  dims[static_cast<std::size_t>(s.rank())] = table.shape()[1];
  Tensor y =
      empty(Shape(std::span<const std::int64_t>(dims.data(), s.dims().size() + 1)), table.dtype(), table.device());
  TAP_DISPATCH(embedding_forward, table.value(), ids, y);
  return record(
      "embedding", y,
      [ids = save(ids), padding_id](const Tensor& dy, Grad dtable) {
        TAP_DISPATCH(embedding_backward, dy, ids(), padding_id, dtable);
      },
      table);
}

}  // namespace tapestry
