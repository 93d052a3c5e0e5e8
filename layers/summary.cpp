#include "layers/summary.h"

#include <algorithm>
#include <map>

namespace tapestry {

namespace {

struct Line {
  std::size_t depth;
  std::string name, what, note = {};
  std::int64_t elements = 0, bytes = 0, flops = 0;
};

struct Totals {
  std::int64_t trainable = 0, frozen = 0, parameter_bytes = 0, buffers = 0, buffer_bytes = 0;
};

class Collector : public Visitor {
 public:
  explicit Collector(Module& model) {
    lines.push_back({0, std::string(model.kind()), ""});
    lines[0].flops = model.own_flops();
    open_.push_back({0, 0});
    model.visit(*this);
  }

  std::vector<Line> lines;  // parents first; a module's numbers include all below it
  Totals totals;

 protected:
  void on_enter(Module& m) override {
    lines.push_back({open_.size(), local_name(), std::string(m.kind())});
    open_.push_back({lines.size() - 1, path().size() + 1});
    for (const Open& o : open_) lines[o.line].flops += m.own_flops();
  }
  void on_leave(Module&) override { open_.pop_back(); }

  void on_parameter(Parameter& p) override {
    const auto [first, fresh] = first_names_.emplace(p.state().get(), path());
    Line line{open_.size(), local_name(), describe(p.value()), p.trainable() ? "" : "frozen"};
    if (!fresh) line.note = text_of("tied to ", first->second);
    add(line, fresh ? p.value() : Tensor());
    if (!fresh) return;
    (p.trainable() ? totals.trainable : totals.frozen) += p.numel();
    totals.parameter_bytes += p.value().bytes();
  }
  void on_buffer(Tensor& t) override {
    lines.push_back({open_.size(), local_name(), describe(t), "buffer"});
    totals.buffers += t.numel();
    totals.buffer_bytes += t.bytes();
  }

 private:
  struct Open {
    std::size_t line, prefix;  // of the path: what comes before the names of its members
  };

  std::string local_name() const { return path().substr(open_.back().prefix); }
  static std::string describe(const Tensor& t) {
    return text_of(t.shape(), t.dtype() == DType::f32 ? "" : " ", t.dtype() == DType::f32 ? "" : name_of(t.dtype()));
  }
  void add(Line line, const Tensor& value) {
    if (value) {
      line.elements = value.numel();
      line.bytes = value.bytes();
      for (const Open& o : open_) {
        lines[o.line].elements += value.numel();
        lines[o.line].bytes += value.bytes();
      }
    }
    lines.push_back(std::move(line));
  }

  std::vector<Open> open_;
  std::map<const detail::ParameterState*, std::string> first_names_;
};

// 1234567 -> "1,234,567"
std::string grouped(std::int64_t n) {
  std::string text = std::to_string(n);
  for (std::size_t i = text.size(); i > 3; i -= 3) text.insert(i - 3, 1, ',');
  return text;
}

std::string bytes_text(std::int64_t bytes) {
  constexpr std::string_view kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  auto tenths = static_cast<double>(bytes) * 10;
  for (; tenths >= 10240 && unit < 4; ++unit) tenths /= 1024;
  const auto rounded = static_cast<std::int64_t>(tenths + 0.5);
  const std::string fraction = unit == 0 ? "" : text_of(".", rounded % 10);
  return text_of(rounded / 10, fraction, " ", kUnits[unit]);
}

std::string or_blank(std::int64_t n) { return n == 0 ? "" : grouped(n); }

std::string left(std::string text, std::size_t width) {
  text.resize(std::max(width, text.size()), ' ');
  return text;
}
std::string right(const std::string& text, std::size_t width) {
  return std::string(width - std::min(width, text.size()), ' ') + text;
}

}  // namespace

std::string summary(Module& model) {
  const Collector found(model);
  std::size_t names = 0, whats = 0;
  for (const Line& l : found.lines) {
    names = std::max(names, 2 * l.depth + l.name.size());
    whats = std::max(whats, l.what.size());
  }
  auto row = [&](const std::string& name, const std::string& what, const std::string& count, const std::string& bytes,
                 const std::string& flops, const std::string& note) {
    std::string text = text_of(left(name, names), "  ", left(what, whats), right(count, 16), right(bytes, 12),
                               right(flops, 16), note.empty() ? "" : "  ", note);
    text.resize(text.find_last_not_of(' ') + 1);
    return text + '\n';
  };
  std::string text = row("", "", "parameters", "bytes", "FLOPs/token", "");
  for (const Line& l : found.lines)
    text += row(std::string(2 * l.depth, ' ') + l.name, l.what, or_blank(l.elements),
                l.bytes == 0 ? "" : bytes_text(l.bytes), or_blank(l.flops), l.note);
  const Totals& t = found.totals;
  text += text_of("parameters ", grouped(t.trainable + t.frozen), " (", grouped(t.trainable), " trainable, ",
                  grouped(t.frozen), " frozen), ", bytes_text(t.parameter_bytes), "\n");
  if (t.buffers > 0) text += text_of("buffers ", grouped(t.buffers), ", ", bytes_text(t.buffer_bytes), "\n");
  text += text_of("forward ", grouped(found.lines[0].flops), " FLOPs per token\n");
  return text;
}

}  // namespace tapestry
