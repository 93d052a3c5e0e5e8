// Token ids and class labels: i32 or i64 tensors, read as int64.
#pragma once

#include "core/tensor.h"

namespace tapestry::cpu {

class Ids {
 public:
  // `op` and `name` are for errors; throws for another dtype.
  Ids(const char* op, const char* name, const Tensor& ids) {
    if (ids.dtype() == DType::i64)
      wide_ = ids.data<std::int64_t>();
    else if (ids.dtype() == DType::i32)
      narrow_ = ids.data<std::int32_t>();
    else
      fail(op, ": ", name, " must be i32 or i64, not ", ids.dtype());
  }
  std::int64_t operator[](std::int64_t i) const { return wide_ ? wide_[i] : narrow_[i]; }

 private:
  const std::int64_t* wide_ = nullptr;
  const std::int32_t* narrow_ = nullptr;
};

}  // namespace tapestry::cpu
