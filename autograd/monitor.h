// Where NaN and overflow begin, and how much room the values have left in their type: watches what this thread records.
//
//   Monitor monitor(model);
//   { Tape tape; tape.backward(model.loss(x, y).loss); }
//   if (monitor.first()) std::cerr << monitor.first()->text() << '\n';
//   std::cout << monitor.headroom_text();
#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "autograd/module.h"
#include "core/kernels/value_range.h"

namespace tapestry {

// A tensor that holds NaN or inf, the first of its step: what the op made of inputs without (`given` false), or what it
// was given, by a constant, a watched value, a Parameter or the start of backward.
struct Finding {
  struct Operand {
    std::string name;  // "output 0", "input 1 (blocks.0.mlp.up.weight)", "dy 0", "the gradient of input 2"
    DType dtype;
    Shape shape;
    ValueRange range;
  };
  std::string op, layer;  // the layer as the path of its Parameters, "blocks.0.mlp.up"; "": none was used yet
  bool after = false;     // the op has no Parameter; `layer` is the one used before it
  bool backward = false, given = false;
  Operand tensor;
  std::vector<Operand> operands;  // inputs and outputs, or dy and the gradients, as far as they are floating

  std::string text() const;  // all of it in one line
};

// While it lives, every record of this thread is examined: its outputs, in backward what arrives (dy) and the gradients
// it writes, and each Parameter's complete gradient. One reading of each; values and bits of a run do not change, and
// nothing is allocated while all is finite, after the first step. Monitors nest; only the innermost watches.
//
// What counts as a finding is where things got worse: a record that makes NaN of operands without, or inf of finite
// ones, and one that reads such a value from outside of the tape. A -inf that is a constant (a mask) is on purpose, and
// so is what merely passes it on; the NaN that comes of it is a finding. Inside a checkpoint() the record is known only
// once backward computes it again, and then replaces the finding of the checkpoint as a whole.
class Monitor {
 public:
  Monitor();                        // names Parameters by their shape
  explicit Monitor(Module& model);  // names them by their path; the model must outlive the monitor
  ~Monitor();
  Monitor(const Monitor&) = delete;
  Monitor& operator=(const Monitor&) = delete;

  const std::optional<Finding>& first() const { return first_; }  // since the start, next_step() or clear()
  void next_step() { first_.reset(); }                            // looks for a first one again; counts go on
  void clear();                                                   // forgets everything

  // Sums over the tensors that one place had.
  struct Values {
    std::int64_t tensors = 0, nonfinite_tensors = 0;
    std::int64_t elements = 0, nans = 0, infs = 0, zeros = 0, subnormals = 0;
    double largest = 0, limit = 0;  // the finite magnitude that was closest to its type's largest, and that
    void add(const ValueRange& range, DType dtype);
  };
  struct Row {
    std::string op, layer;  // as in Finding; of a Parameter's complete gradient: "", and its path
    bool after = false;
    DType dtype = DType::f32;  // of the last tensor
    Shape shape;
    Values output, gradient;
  };
  const std::deque<Row>& rows() const { return rows_; }  // in the order in which they first ran
  std::string overflow_text() const;                     // a table of the rows that had NaN or inf; "" if none had
  std::string headroom_text() const;                     // a table of all: largest magnitude, subnormals, zeros

  // Not for use outside of Tape. An input of a record, or the gradient for it; null where there is none.
  struct Input {
    const Tensor* value;
    const detail::ParameterState* parameter;
    bool recorded;  // another record made it
  };
  std::uint32_t forward(const char* op, std::span<const Tensor> outputs, std::span<const Input> inputs, bool begins);
  std::size_t before_backward(std::uint32_t note, const char* op, std::span<const Tensor> dys);
  void after_backward(std::uint32_t note, std::size_t mark, const char* op, std::span<const Input> gradients);
  void parameter_gradient(const detail::ParameterState& state);
  static Monitor* current();

 private:
  struct Names {
    std::string parameter, layer;
  };
  struct Arrived {
    DType dtype;
    Shape shape;
    ValueRange range;
  };
  const Names& names_of(const detail::ParameterState& state);
  std::size_t row_index(std::string_view op, std::string_view layer, bool after);
  std::size_t noted_row(std::uint32_t note, const char* op);
  void examine_forward(const Row& row, std::span<const Tensor> outputs, std::span<const Input> inputs);
  std::string describe(std::size_t index, const Input& input);
  void found(const Row& row, bool backward, bool given, const Finding::Operand& tensor,
             std::vector<Finding::Operand> operands);

  std::unordered_map<const detail::ParameterState*, Names> names_;
  std::deque<Row> rows_;
  std::size_t next_row_ = 0;  // a step repeats the last one, so this is the one to expect
  std::string_view layer_;    // used last; of names_ or rows_
  std::vector<Arrived> dys_;  // of the records whose backward runs now: one, or more inside checkpoints
  std::optional<Finding> first_;
  std::uint32_t serial_;
  Monitor* outer_;
};

// The first NaN or inf of `step`, which makes a Tape and calls backward on it, or nothing if all is finite. For a step
// that failed: with the same weights, batch and random numbers it fails again, watched record by record. An Error that
// `step` throws is dropped where there is a finding. The gradients of the model are unset afterwards.
std::optional<Finding> find_first_nan(Module& model, const std::function<void()>& step);

}  // namespace tapestry
