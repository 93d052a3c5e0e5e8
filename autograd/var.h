// Var: a Tensor that may be recorded on a tape. What differentiable functions take and return.
#pragma once

#include "autograd/parameter.h"
#include "core/tensor.h"

namespace tapestry {

using NodeId = std::uint32_t;  // 0: not tracked

class Var {
 public:
  Var() = default;
  Var(Tensor value) : value_(std::move(value)) {}  // a constant: no gradient
  Var(const Parameter& parameter);                 // a leaf of the current tape; a constant where nothing is recorded

  const Tensor& value() const { return value_; }
  const Shape& shape() const { return value_.shape(); }
  DType dtype() const { return value_.dtype(); }
  Device device() const { return value_.device(); }
  std::int64_t numel() const { return value_.numel(); }
  double item() const { return value_.item(); }
  explicit operator bool() const { return static_cast<bool>(value_); }

  bool tracked() const { return node_ != 0; }
  Var detach() const { return Var(value_); }  // the same storage, cut from the graph

  // For ops that read 16 bits. parameter(): the value is that of a Parameter. read_as(): this Var, its gradient and the
  // dtype of that included, with its value converted; a Parameter's is converted once and kept until it changes.
  bool parameter() const { return parameter_ != nullptr; }
  Var read_as(DType dtype) const;
  const Storage& source() const { return source_; }  // what read_as() converted; else empty

 private:
  friend class Tape;
  Var(Tensor value, NodeId node, std::uint64_t epoch) : value_(std::move(value)), node_(node), epoch_(epoch) {}

  Tensor value_;
  NodeId node_ = 0;
  std::uint64_t epoch_ = 0;  // of the tape that made it; every tape has its own
  std::shared_ptr<detail::ParameterState> parameter_;
  Storage source_;
};

}  // namespace tapestry
