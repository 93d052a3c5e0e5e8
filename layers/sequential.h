// Layers one after the other, and a layer with its input added to its result.
#pragma once

#include <memory>
#include <vector>

#include "autograd/module.h"
#include "autograd/var.h"

namespace tapestry {

// Any layers that map a Var to a Var; it owns them. Their names are "0", "1", ...
//
//   const Sequential net{Linear(2, 16, rng), ActivationLayer(Activation::tanh), Linear(16, 1, rng)};
//
// Braces, not parentheses: C++ evaluates arguments in braces from left to right, so `rng` is used in that order.
class Sequential : public Module {
 public:
  template <std::derived_from<Module>... Layers>
  requires(sizeof...(Layers) > 1 || !(std::same_as<Layers, Sequential> || ...)) explicit Sequential(Layers... layers) {
    (add(std::move(layers)), ...);
  }
  template <std::derived_from<Module> Layer>
  Sequential& add(Layer layer) {
    const auto call = [](const Module& m, const Var& x) { return Var(static_cast<const Layer&>(m)(x)); };
    layers_.push_back({std::make_unique<Layer>(std::move(layer)), call});
    return *this;
  }

  Var operator()(const Var& x) const {
    Var y = x;
    for (const Entry& layer : layers_) y = layer.call(*layer.module, y);
    return y;
  }
  void visit(Visitor& v) override {
    for (std::size_t i = 0; i < layers_.size(); ++i) v(to_text(i), *layers_[i].module);
  }
  std::string_view kind() const override { return "Sequential"; }

  std::size_t size() const { return layers_.size(); }
  Module& operator[](std::size_t i) { return *layers_.at(i).module; }

 private:
  struct Entry {
    std::unique_ptr<Module> module;
    Var (*call)(const Module&, const Var&);
  };
  std::vector<Entry> layers_;
};

// x + layer(x) (He et al. 2015).
template <std::derived_from<Module> Layer>
class Residual : public Module {
 public:
  explicit Residual(Layer inner) : layer(std::move(inner)) {}
  Var operator()(const Var& x) const { return x + layer(x); }
  void visit(Visitor& v) override { v("layer", layer); }
  std::string_view kind() const override { return "Residual"; }

  Layer layer;
};

}  // namespace tapestry
