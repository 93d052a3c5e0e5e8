// Pooling as layers, for Sequential: the maximum or the average of windows over [N, C, L] and [N, C, H, W].
// See core/kernels/pool.h for the options; a constructor throws for those that no input fits.
#pragma once

#include "autograd/module.h"
#include "autograd/ops.h"

namespace tapestry {

class MaxPool1d : public Module {
 public:
  explicit MaxPool1d(const MaxPool1dOptions& options) : options_(options) { pool_window("MaxPool1d", options); }
  Var operator()(const Var& x) const { return max_pool1d(x, options_); }
  void visit(Visitor&) override {}
  std::string_view kind() const override { return "MaxPool1d"; }

 private:
  MaxPool1dOptions options_;
};

class MaxPool2d : public Module {
 public:
  explicit MaxPool2d(const MaxPool2dOptions& options) : options_(options) { pool_window("MaxPool2d", options); }
  Var operator()(const Var& x) const { return max_pool2d(x, options_); }
  void visit(Visitor&) override {}
  std::string_view kind() const override { return "MaxPool2d"; }

 private:
  MaxPool2dOptions options_;
};

class AvgPool1d : public Module {
 public:
  explicit AvgPool1d(const AvgPool1dOptions& options) : options_(options) { pool_window("AvgPool1d", options); }
  Var operator()(const Var& x) const { return avg_pool1d(x, options_); }
  void visit(Visitor&) override {}
  std::string_view kind() const override { return "AvgPool1d"; }

 private:
  AvgPool1dOptions options_;
};

class AvgPool2d : public Module {
 public:
  explicit AvgPool2d(const AvgPool2dOptions& options) : options_(options) { pool_window("AvgPool2d", options); }
  Var operator()(const Var& x) const { return avg_pool2d(x, options_); }
  void visit(Visitor&) override {}
  std::string_view kind() const override { return "AvgPool2d"; }

 private:
  AvgPool2dOptions options_;
};

}  // namespace tapestry
