// Module and Visitor: a layer names its members once, in visit(), and initialisation, saving, optimizers, counting,
// dtype and device moves, train/eval and printing all walk the same list.
#pragma once

#include <concepts>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "autograd/parameter.h"

namespace tapestry {

class Visitor;

class Module {
 public:
  virtual ~Module() = default;
  Module() = default;
  Module(Module&&) = default;
  Module& operator=(Module&&) = default;

  virtual void visit(Visitor& v) = 0;  // v("name", member) for every Parameter, Module, list of Modules and buffer
  virtual std::string_view kind() const { return "Module"; }  // "Linear", for printing

  // Multiplications and additions of a forward pass for one token (one row), without those of the members below;
  // elementwise work is not counted. For summary().
  virtual std::int64_t own_flops() const { return 0; }

  // Dropout and running statistics depend on it; the default is training.
  bool training() const { return training_; }
  void train(bool training = true);  // this module and all below it
  void eval() { train(false); }

 private:
  bool training_ = true;
};

// Eval mode for a module and all below it while this lives; afterwards each has its own mode back.
class EvalScope {
 public:
  explicit EvalScope(Module& module);
  ~EvalScope();
  EvalScope(const EvalScope&) = delete;
  EvalScope& operator=(const EvalScope&) = delete;

 private:
  std::vector<std::pair<Module*, bool>> modes_;
};

// Walks a module tree. A visitor overrides what it wants to see; path() is the dotted name of the member at hand.
class Visitor {
 public:
  virtual ~Visitor() = default;

  void operator()(std::string_view name, Parameter& parameter);
  void operator()(std::string_view name, Tensor& buffer);  // saved with the model, not trained
  void operator()(std::string_view name, Module& module);
  template <std::derived_from<Module> M>
  void operator()(std::string_view name, std::vector<M>& list) {
    for (std::size_t i = 0; i < list.size(); ++i) (*this)(text_of(name, ".", i), list[i]);
  }

  const std::string& path() const { return path_; }

 protected:
  virtual void on_parameter(Parameter&) {}
  virtual void on_buffer(Tensor&) {}
  virtual void on_enter(Module&) {}  // before its members
  virtual void on_leave(Module&) {}

 private:
  template <class F>
  void at(std::string_view name, F&& f);
  std::string path_;
};

struct NamedParameter {
  std::string name;  // "blocks.0.attention.qkv.weight"
  Parameter* parameter;
  std::vector<std::string> aliases = {};  // further names of a tied Parameter
};
struct NamedBuffer {
  std::string name;
  Tensor* buffer;
};

// In visiting order, a tied Parameter once (under its first name). Throws if two members share a name.
std::vector<NamedParameter> parameters(Module& module);
std::vector<NamedBuffer> buffers(Module& module);
std::int64_t parameter_count(Module& module);  // elements, tied ones once
void zero_grad(Module& module);
void freeze(Module& module);    // set_trainable(false) for every parameter; a tied one is frozen wherever it is used
void unfreeze(Module& module);  // set_trainable(true)
void convert(Module& module, DType dtype);  // parameters and floating buffers; throws once packed by an optimizer

// Throws, naming each by shape, if `tape` used a Parameter that visit() of `module` does not reach.
class Tape;
void check_all_visited(Module& module, const Tape& tape);

}  // namespace tapestry
