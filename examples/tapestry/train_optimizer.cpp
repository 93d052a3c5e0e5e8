// The table of optimizers, and the average of weights, of `tapestry train`.
#include "train_optimizer.h"

#include <algorithm>

#include "optim/optimizers.h"

namespace tapestry::command {

namespace {

using Parameters = std::vector<NamedParameter>;

struct Choice {
  const char* name;
  double learning_rate, weight_decay, momentum;  // defaults
  std::unique_ptr<Optimizer> (*make)(const TrainOptions& o, Parameters parameters);
};

template <class O, class Options>
std::unique_ptr<Optimizer> make(Parameters parameters, const Options& options) {
  return std::make_unique<O>(std::move(parameters), options);
}

// Embeddings and the head are matrices, but of unrelated rows: by Muon's authors AdamW is for them.
bool is_table(const NamedParameter& p) { return p.name == "wte.weight" || p.name == "wpe.weight"; }

const Choice kChoices[] = {
    {"adamw", 1e-3, 0.1, 0,
     [](const TrainOptions& o, Parameters p) {
       return make<AdamW>(std::move(p), AdamWOptions{o.beta1, o.beta2, 1e-8, o.weight_decay});
     }},
    {"adam", 1e-3, 0, 0,
     [](const TrainOptions& o, Parameters p) {
       return make<Adam>(std::move(p), AdamOptions{o.beta1, o.beta2, 1e-8, o.weight_decay});
     }},
    {"sgd", 0.1, 0, 0.9,
     [](const TrainOptions& o, Parameters p) {
       return make<Sgd>(std::move(p), SgdOptions{.momentum = o.momentum, .weight_decay = o.weight_decay});
     }},
    {"rmsprop", 1e-3, 0, 0,
     [](const TrainOptions& o, Parameters p) {
       return make<RmsProp>(std::move(p), RmsPropOptions{.momentum = o.momentum, .weight_decay = o.weight_decay});
     }},
    {"adagrad", 1e-2, 0, 0,
     [](const TrainOptions& o, Parameters p) {
       return make<Adagrad>(std::move(p), AdagradOptions{.weight_decay = o.weight_decay});
     }},
    {"adafactor", 3e-2, 0, 0,
     [](const TrainOptions& o, Parameters p) {
       return make<Adafactor>(std::move(p), AdafactorOptions{.weight_decay = o.weight_decay});
     }},
    {"lion", 1e-3, 0.1, 0,
     [](const TrainOptions& o, Parameters p) {
       return make<Lion>(std::move(p), LionOptions{o.beta1, o.beta2, o.weight_decay});
     }},
    {"lamb", 1e-2, 0.1, 0,
     [](const TrainOptions& o, Parameters p) {
       return make<Lamb>(std::move(p), LambOptions{o.beta1, o.beta2, 1e-6, o.weight_decay});
     }},
    {"muon", 1e-2, 0.1, 0.95,
     [](const TrainOptions& o, Parameters p) -> std::unique_ptr<Optimizer> {
       const MuonOptions options{
           .momentum = o.momentum, .weight_decay = o.weight_decay, .beta1 = o.beta1, .beta2 = o.beta2};
       return std::make_unique<Muon>(std::move(p), options, is_table);
     }},
};

const Choice& choice_of(const TrainOptions& o) {
  return *std::find_if(std::begin(kChoices), std::end(kChoices),
                       [&](const Choice& c) { return o.optimizer == c.name; });
}

}  // namespace

void add_optimizer_options(Options& options, TrainOptions& o) {
  std::vector<std::string> names;
  std::string list;
  for (const Choice& c : kChoices) {
    names.push_back(c.name);
    list += (list.empty() ? "" : " ") + names.back();
  }
  options.add("optimizer", o.optimizer, list, one_of(names));
  options.add("momentum", o.momentum, "of sgd, rmsprop and muon; their defaults are 0.9, 0, 0.95", from_to_below(0, 1));
  options.add("ema", o.ema, "evaluate and sample with averaged weights; 0 means no", from_to_below(0, 1));
}

void set_optimizer_defaults(const Options& given, TrainOptions& o) {
  const Choice& choice = choice_of(o);
  if (!given.given("momentum")) o.momentum = choice.momentum;
  if (o.optimizer == "adamw") return;  // the options' own defaults
  if (!given.given("weight_decay")) o.weight_decay = choice.weight_decay;
  if (!given.given("learning_rate")) o.learning_rate = choice.learning_rate;
  if (!given.given("min_lr")) o.min_lr = o.learning_rate / 10;
}

std::unique_ptr<Optimizer> make_optimizer(const TrainOptions& o, std::vector<NamedParameter> parameters) {
  return choice_of(o).make(o, std::move(parameters));
}

AveragedModel::AveragedModel(Module& model, double decay) : model_(model) {
  if (decay > 0) ema_.emplace(parameters(model), EmaOptions{.decay = decay});
}

// Without a name of its own, so that the parameters keep theirs.
void AveragedModel::visit(Visitor& v) {
  v("", model_);
  if (ema_) v("ema", *ema_);
}

double ema_decay(const std::map<std::string, std::string>& stored) {
  const auto found = stored.find("ema");
  return found == stored.end() ? 0 : std::stod(found->second);
}

}  // namespace tapestry::command
