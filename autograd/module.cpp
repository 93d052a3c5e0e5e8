#include "autograd/module.h"

#include <algorithm>
#include <set>
#include <unordered_map>

#include "autograd/tape.h"

namespace tapestry {

template <class F>
void Visitor::at(std::string_view name, F&& f) {
  const std::size_t length = path_.size();
  if (length) path_ += '.';
  path_ += name;
  f();
  path_.resize(length);
}

void Visitor::operator()(std::string_view name, Parameter& parameter) {
  at(name, [&] { on_parameter(parameter); });
}
void Visitor::operator()(std::string_view name, Tensor& buffer) {
  at(name, [&] { on_buffer(buffer); });
}
void Visitor::operator()(std::string_view name, Module& module) {
  at(name, [&] {
    on_enter(module);
    module.visit(*this);
    on_leave(module);
  });
}

void Module::train(bool training) {
  struct Setter : Visitor {
    bool training;
    void on_enter(Module& m) override { m.training_ = training; }
  } setter;
  setter.training = training;
  training_ = training;
  visit(setter);
}

std::vector<NamedParameter> parameters(Module& module) {
  struct Collector : Visitor {
    std::vector<NamedParameter> found;
    std::set<std::string> names;
    std::unordered_map<const detail::ParameterState*, std::size_t> index;
    void on_parameter(Parameter& p) override {
      TAP_CHECK(names.insert(path()).second, "visit: two members are named ", path());
      const auto [entry, fresh] = index.emplace(p.state().get(), found.size());
      if (fresh)
        found.push_back({path(), &p});
      else
        found[entry->second].aliases.push_back(path());
    }
  } collector;
  module.visit(collector);
  return std::move(collector.found);
}

std::vector<NamedBuffer> buffers(Module& module) {
  struct Collector : Visitor {
    std::vector<NamedBuffer> found;
    void on_buffer(Tensor& t) override { found.push_back({path(), &t}); }
  } collector;
  module.visit(collector);
  return std::move(collector.found);
}

EvalScope::EvalScope(Module& module) {
  struct Collector : Visitor {
    std::vector<std::pair<Module*, bool>>* modes;
    void on_enter(Module& m) override { modes->emplace_back(&m, m.training()); }
  } collector;
  collector.modes = &modes_;
  modes_.emplace_back(&module, module.training());
  module.visit(collector);
  module.eval();
}

EvalScope::~EvalScope() {
  // Parents come first, so what they set below is overwritten by each module's own mode.
  for (const auto& [module, training] : modes_) module->train(training);
}

std::int64_t parameter_count(Module& module) {
  std::int64_t count = 0;
  for (const NamedParameter& p : parameters(module)) count += p.parameter->numel();
  return count;
}

void zero_grad(Module& module) {
  for (const NamedParameter& p : parameters(module)) p.parameter->zero_grad();
}

void freeze(Module& module) {
  for (const NamedParameter& p : parameters(module)) p.parameter->set_trainable(false);
}

void unfreeze(Module& module) {
  for (const NamedParameter& p : parameters(module)) p.parameter->set_trainable(true);
}

void convert(Module& module, DType dtype) {
  for (const NamedParameter& p : parameters(module)) p.parameter->to(dtype);
  for (const NamedBuffer& b : buffers(module))
    if (is_floating(b.buffer->dtype())) *b.buffer = b.buffer->to(dtype);
}

void check_all_visited(Module& module, const Tape& tape) {
  std::set<const detail::ParameterState*> visited;
  for (const NamedParameter& p : parameters(module)) visited.insert(p.parameter->state().get());
  std::string missing;
  for (const detail::ParameterState* state : tape.touched_parameters())
    if (!visited.contains(state)) missing += text_of(missing.empty() ? "" : ", ", state->value.shape());
  TAP_CHECK(missing.empty(), module.kind(), ": visit() does not name every Parameter that was used; missing: ", missing,
            "; add v(\"name\", member) for each");
}

}  // namespace tapestry
