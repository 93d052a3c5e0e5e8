// Saving and loading of a training state: the list of entries and the checks before anything is changed.
// The text of /run is in run_text.cpp.
#include "optim/training_state.h"

#include <cstdio>
#include <set>
#include <utility>

#include "core/io/hash.h"
#include "core/io/hdf5_file.h"
#include "optim/run_text.h"

namespace tapestry {

namespace {

// One dataset and where it belongs.
struct Entry {
  std::string name;
  Tensor target;
};

std::vector<Entry> model_entries(Module& model) {
  std::vector<Entry> entries;
  for (const NamedParameter& p : parameters(model)) entries.push_back({"parameters/" + p.name, p.parameter->value()});
  for (const NamedBuffer& b : buffers(model)) entries.push_back({"buffers/" + b.name, *b.buffer});
  return entries;
}

std::vector<Entry> optimizer_entries(const Optimizer& optimizer) {
  std::vector<Entry> entries;
  for (Optimizer::NamedState& s : optimizer.state())
    entries.push_back({"optimizer/" + std::move(s.name), std::move(s.tensor)});
  return entries;
}

// Compares a file with what is expected, collects every mismatch, and reads everything before anything is changed.
class Loader {
 public:
  explicit Loader(const std::string& path) : path_(path), file_(path) {}

  const Hdf5Reader& file() const { return file_; }

  void mismatch(std::string line) { mismatches_.push_back(std::move(line)); }

  void expect(const std::string& name, const Shape& shape, DType dtype) {
    expected_.insert(name);
    if (!file_.contains(name)) return mismatch(text_of(name, ": missing in the file"));
    const Hdf5Reader::Info info = file_.info(name);
    if (info.shape != shape || info.dtype != dtype)
      mismatch(text_of(name, ": the file holds ", info.dtype, " ", info.shape, ", the model ", dtype, " ", shape));
  }
  void expect(const std::vector<Entry>& entries) {
    for (const Entry& e : entries) expect(e.name, e.target.shape(), e.target.dtype());
  }
  void expect_link(const std::string& name) { expected_.insert(name); }

  void reject_others(const std::string& group) {
    for (const std::string& name : file_.names(group))
      if (!expected_.contains(group + "/" + name)) mismatch(text_of(group, "/", name, ": unexpected"));
  }

  void check() const {
    if (mismatches_.empty()) return;
    std::string list;
    for (const std::string& line : mismatches_) list += "\n  " + line;
    fail("load: ", path_, " does not fit; nothing was changed. Mismatches (", mismatches_.size(), "):", list);
  }

  std::vector<Tensor> read(const std::vector<Entry>& entries) const {
    std::vector<Tensor> tensors;
    for (const Entry& e : entries) tensors.push_back(file_.read(e.name));
    return tensors;
  }

 private:
  std::string path_;
  Hdf5Reader file_;
  std::set<std::string> expected_;
  std::vector<std::string> mismatches_;
};

// Names that are tied here must be one Parameter in the file too, or one of two different values would be lost.
void expect_ties(Loader& loader, const std::vector<NamedParameter>& list, const RunText& text) {
  auto first_name = [&](const std::string& name) {
    const auto tie = text.ties.find(name);
    return tie == text.ties.end() ? name : tie->second;
  };
  for (const NamedParameter& p : list) {
    for (const std::string& alias : p.aliases) {
      loader.expect_link("parameters/" + alias);
      if (first_name(alias) != first_name(p.name))
        loader.mismatch(text_of("parameters/", alias, ": tied to ", p.name, " in the model, but not in the file"));
    }
  }
}

void expect_optimizer(Loader& loader, const Optimizer& optimizer, const RunText& text) {
  if (!text.has_optimizer) return loader.mismatch("optimizer: missing in the file");
  if (text.optimizer_name != optimizer.name())
    return loader.mismatch(
        text_of("optimizer: the file holds the state of ", text.optimizer_name, ", not of ", optimizer.name()));
  loader.expect(optimizer_entries(optimizer));
  loader.reject_others("optimizer");
  for (const auto& [name, updates] : optimizer.counters().updates)
    if (!text.optimizer.updates.contains(name)) loader.mismatch(text_of("optimizer: no update count for ", name));
}

}  // namespace

std::string weights_hash(Module& model) {
  Hash128 hash;
  for (const Entry& e : model_entries(model)) {
    hash.add(e.name);
    hash.add(name_of(e.target.dtype()));
    hash.add(std::int64_t{e.target.shape().rank()});
    for (const std::int64_t extent : e.target.shape().dims()) hash.add(extent);
    const Tensor host = e.target.to(Device::cpu);
    hash.add({host.raw_data(), static_cast<std::size_t>(host.bytes())});
  }
  return hash.hex();
}

void save_training_state(const std::string& path, Module& model, const Optimizer* optimizer, const RunState& run) {
  RunText text{.run = run};
  Hdf5Writer file(path);
  for (const Entry& e : model_entries(model)) file.write(e.name, e.target);
  for (const NamedParameter& p : parameters(model)) {
    for (const std::string& alias : p.aliases) {
      file.link("parameters/" + alias, "parameters/" + p.name);
      text.ties[alias] = p.name;
    }
    if (!optimizer || !p.parameter->has_grad()) continue;
    file.write("gradients/" + p.name, p.parameter->grad());
    if (const double scale = p.parameter->state()->loss_scale; scale != 1) text.gradient_scales[p.name] = scale;
  }
  if (optimizer) {
    for (const Entry& e : optimizer_entries(*optimizer)) file.write(e.name, e.target);
    text.has_optimizer = true;
    text.optimizer_name = optimizer->name();
    text.optimizer = optimizer->counters();
  }
  file.write_text("run", write_run_text(text));
  file.commit();
}

RunState load_training_state(const std::string& path, Module& model, Optimizer* optimizer) {
  Loader loader(path);
  RunText text = read_run_text(path, loader.file().read_text("run"));
  const std::vector<NamedParameter> list = parameters(model);

  std::vector<Entry> entries = model_entries(model), gradients;
  loader.expect(entries);
  expect_ties(loader, list, text);
  loader.reject_others("parameters");
  loader.reject_others("buffers");
  if (optimizer) {
    expect_optimizer(loader, *optimizer, text);
    for (Entry& e : optimizer_entries(*optimizer)) entries.push_back(std::move(e));
    for (const NamedParameter& p : list)
      if (loader.file().contains("gradients/" + p.name))
        gradients.push_back({"gradients/" + p.name, p.parameter->value()});
    loader.expect(gradients);
    loader.reject_others("gradients");
  }
  loader.check();

  const std::vector<Tensor> values = loader.read(entries), gradient_values = loader.read(gradients);
  const WriterScope writer("load_training_state");
  for (std::size_t i = 0; i < entries.size(); ++i) entries[i].target.copy_from(values[i]);
  if (optimizer) {
    optimizer->set_counters(text.optimizer);
    std::size_t next = 0;
    for (const NamedParameter& p : list) {
      p.parameter->zero_grad();
      if (next == gradients.size() || gradients[next].name != "gradients/" + p.name) continue;
      detail::ParameterState& state = *p.parameter->state();
      Grad(&state.grad).pass(gradient_values[next++]);
      if (const auto scale = text.gradient_scales.find(p.name); scale != text.gradient_scales.end())
        state.loss_scale = scale->second;
    }
  }
  if (text.arch != kArch)
    std::fprintf(stderr,
                 "warning: %s was written by a build for %s and this one is for %s: the run continues, but not bit for "
                 "bit as it would have there\n",
                 path.c_str(), text.arch.c_str(), kArch);
  return std::move(text.run);
}

RunState read_run_state(const std::string& path) { return read_run_text(path, Hdf5Reader(path).read_text("run")).run; }

}  // namespace tapestry
