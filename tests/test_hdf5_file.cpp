// HDF5 files: round trips, links, sizes, and every way in which a file can be broken.
#include "core/io/hdf5_file.h"

#include <doctest/doctest.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <limits>
#include <thread>

#include "core/io/atomic_file.h"
#include "core/io/hdf5_detail.h"
#include "core/random.h"
#include "fault_injection.h"

// HDF5's own count of open files, datasets, groups, types and attributes; its header is no part of ours.
extern "C" ssize_t H5Fget_obj_count(std::int64_t file, unsigned types);

using namespace tapestry;

namespace {

ssize_t open_objects() { return H5Fget_obj_count(0x1f, 0x1f); }  // H5F_OBJ_ALL, of all files

Tensor numbers(const Shape& shape, DType dtype) {
  Tensor t = empty(shape, dtype);
  const RandomKey random{7, 1};
  for (std::int64_t i = 0; i < t.bytes(); ++i)
    t.mutable_raw_data()[i] = static_cast<std::byte>(random.bits(i));  // NaN patterns and subnormals too
  return t;
}

void write_sample(const std::string& path) {
  Hdf5Writer writer(path);
  writer.write("model/wte.weight", numbers({3, 5, 7}, DType::f32));
  writer.write("model/norm.bias", numbers({11}, DType::bf16));
  writer.write("step", scalar(42, DType::f64));
  writer.write_text("config/text", "width = 16\n");
  writer.link("model/head.weight", "model/wte.weight");
  writer.commit();
}

// Reads everything, as loading a checkpoint does.
void read_sample(const std::string& path) {
  const Hdf5Reader reader(path);
  for (const std::string& name : reader.names("")) reader.read(name);
  reader.read_text("config/text");
}

const std::string& sample_bytes() {
  static const std::string bytes = [] {
    const TemporaryFolder folder;
    write_sample(folder / "sample");
    return read_file(folder / "sample");
  }();
  return bytes;
}

std::string without_header(const std::string& file) { return file.substr(detail::kHdf5HeaderBytes); }
std::string with_header(const std::string& content) { return detail::hdf5_header(content) + content; }

// Without the fsyncs of replace_file, which take most of the time of a test with hundreds of files.
void put(const std::string& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

std::string bytes_of(std::uint64_t value) { return std::string(reinterpret_cast<const char*>(&value), sizeof value); }

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  REQUIRE(at != text.npos);
  return text.replace(at, to.size(), to);
}

}  // namespace

TEST_CASE("every dtype and rank comes back bit for bit") {
  const TemporaryFolder folder;
  const std::vector<Shape> shapes = {{}, {1}, {0}, {3, 0, 2}, {31}, {2, 3, 4, 5, 6, 2}};
  std::vector<std::pair<std::string, Tensor>> written;
  Hdf5Writer writer(folder / "f");
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i64, DType::i32, DType::u8})
    for (const Shape& shape : shapes) {
      const std::string name = text_of(dtype, "/deep.er/", written.size());
      written.emplace_back(name, numbers(shape, dtype));
      writer.write(name, written.back().second);
    }
  writer.commit();

  const Hdf5Reader reader(folder / "f");
  CHECK(reader.names("").size() == written.size());
  for (const auto& [name, tensor] : written) {
    CAPTURE(name);
    CHECK(reader.contains(name));
    CHECK(reader.info(name).shape == tensor.shape());
    CHECK(reader.info(name).dtype == tensor.dtype());
    CHECK(same_bits(reader.read(name), tensor));
    Tensor target = zeros_like(tensor);
    reader.read_into(name, target);
    CHECK(same_bits(target, tensor));
  }
}

TEST_CASE("views write their own part only") {
  const TemporaryFolder folder;
  const Tensor t = numbers({5, 3}, DType::f32);
  Hdf5Writer writer(folder / "f");
  writer.write("rows", t.rows(2, 2));
  writer.commit();
  CHECK(same_bits(Hdf5Reader(folder / "f").read("rows"), t.rows(2, 2).clone()));
}

TEST_CASE("F10 token id 70000 of a vocabulary of 119547 stays 70000") {
  const TemporaryFolder folder;
  Hdf5Writer writer(folder / "f");
  writer.write("ids", from_values<std::int32_t>({70000, 119546, 0}, {3}));
  writer.commit();
  CHECK(Hdf5Reader(folder / "f").read("ids").to_vector<std::int32_t>() == std::vector<std::int32_t>{70000, 119546, 0});
}

TEST_CASE("texts of any bytes, a text is no tensor and a tensor no text") {
  const TemporaryFolder folder;
  const std::string odd("\0 \xff\n \xc3\xa9", 7);
  Hdf5Writer writer(folder / "f");
  writer.write_text("t/odd", odd);
  writer.write_text("t/none", "");
  writer.write("t/u8", numbers({4}, DType::u8));
  writer.commit();
  const Hdf5Reader reader(folder / "f");
  CHECK(reader.read_text("t/odd") == odd);
  CHECK(reader.read_text("t/none").empty());
  CHECK(reader.names("t") == std::vector<std::string>{"u8"});
  CHECK(reader.contains("t/odd"));
  CHECK(has(message_of([&] { reader.read("t/odd"); }), "t/odd is a text, not a tensor"));
  CHECK(has(message_of([&] { reader.read_text("t/u8"); }), "t/u8 is a tensor, not a text"));
}

TEST_CASE("a link is a second name, stored once") {
  const TemporaryFolder folder;
  const Tensor t = numbers({100, 100}, DType::f32);
  Hdf5Writer writer(folder / "f");
  writer.write("a/x", t);
  writer.link("b/y", "a/x");
  CHECK(has(message_of([&] { writer.link("c", "a/nothing"); }), "cannot link c: there is no a/nothing"));
  CHECK(has(message_of([&] { writer.link("a/x", "a/x"); }), "linking a/x"));
  writer.commit();
  CHECK(std::filesystem::file_size(folder / "f") < 60'000);
  const Hdf5Reader reader(folder / "f");
  CHECK(reader.names("") == std::vector<std::string>{"a/x", "b/y"});
  CHECK(reader.names("b") == std::vector<std::string>{"y"});
  CHECK(reader.names("nothing").empty());
  CHECK(same_bits(reader.read("b/y"), t));
}

TEST_CASE("misuse of names and of a committed writer") {
  const TemporaryFolder folder;
  const Tensor t = scalar(1);
  Hdf5Writer writer(folder / "f");
  for (const std::string& name : {std::string(), std::string("/a"), std::string("a//b"), std::string("a/"),
                                  std::string("./a"), std::string("a\0b", 3)})
    CHECK_MESSAGE(has(message_of([&] { writer.write(name, t); }), "a dataset cannot be named so"), name);
  writer.write("a", t);
  CHECK(has(message_of([&] { writer.write("a", t); }), "writing a: "));
  CHECK(has(message_of([&] { writer.write("a/b", t); }), "writing a/b: "));
  CHECK(has(message_of([&] { writer.write("b", Tensor()); }), "empty tensor"));
  writer.commit();
  CHECK(has(message_of([&] { writer.write("c", t); }), "already committed"));
  CHECK(has(message_of([&] { writer.commit(); }), "already committed"));

  const Hdf5Reader reader(folder / "f");
  Tensor wrong = zeros({1}), wrong_type = scalar(0, DType::f64);
  CHECK(has(message_of([&] { reader.read_into("a", wrong); }), "a is [] f32, but the target is [1] f32"));
  CHECK(has(message_of([&] { reader.read_into("a", wrong_type); }), "the target is [] f64"));
  CHECK(has(message_of([&] { reader.read("nothing"); }), folder / "f" + ": there is no dataset nothing"));
  CHECK(has(message_of([&] { reader.read(""); }), "there is no dataset"));
  CHECK_FALSE(reader.contains("a/b"));
  CHECK_FALSE(reader.contains("../a"));
}

TEST_CASE("the same content gives the same bytes, at any time") {
  const TemporaryFolder folder;
  write_sample(folder / "one");
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));  // time stamps count seconds
  write_sample(folder / "two");
  CHECK(read_file(folder / "one") == read_file(folder / "two"));
}

TEST_CASE("a reader keeps its file while that is replaced") {
  const TemporaryFolder folder;
  const auto write = [&](double value) {
    Hdf5Writer writer(folder / "f");
    writer.write("value", scalar(value));
    writer.commit();
  };
  write(1);
  const Hdf5Reader first(folder / "f");
  write(2);
  const Hdf5Reader second(folder / "f");
  CHECK(first.read("value").item() == 1);
  CHECK(second.read("value").item() == 2);
}

TEST_CASE("F08 2000 parameters with 40-character names, moments, and a long configuration") {
  const TemporaryFolder folder;
  const std::string config(200'000, 'j');
  std::vector<std::string> names;
  Hdf5Writer writer(folder / "f");
  for (int i = 0; i < 2000; ++i) {
    const std::string number = to_text(10000 + i);
    names.push_back("blocks." + number + ".attention.projection.weights1");
    REQUIRE(names.back().size() >= 40);
    for (const char* group : {"model/", "adamw/m/", "adamw/v/"}) writer.write(group + names.back(), scalar(i));
  }
  writer.write_text("config", config);
  writer.commit();
  const Hdf5Reader reader(folder / "f");
  CHECK(reader.names("adamw/v") == names);
  CHECK(reader.read("model/" + names[1999]).item() == 1999);
  CHECK(reader.read_text("config") == config);
}

TEST_CASE("F07 a file cut anywhere is an error that names it") {
  const TemporaryFolder folder;
  const std::string& whole = sample_bytes();
  std::vector<std::size_t> cuts = {0, 1, 7, 8, 96, 511, 512, 513, whole.size() - 1};
  for (std::size_t eighth = 1; eighth < 8; ++eighth) cuts.push_back(whole.size() * eighth / 8);
  for (std::size_t cut = 0; cut < whole.size(); cut += 97) cuts.push_back(cut);
  for (const std::size_t cut : cuts) {
    put(folder / "f", whole.substr(0, cut));
    const std::string message = message_of([&] { read_sample(folder / "f"); });
    CAPTURE(cut);
    CAPTURE(message);
    CHECK(has(message, folder / "f" + ": truncated or corrupt"));
  }
  put(folder / "f", whole + "x");
  CHECK(has(message_of([&] { read_sample(folder / "f"); }), "truncated or corrupt"));
  CHECK(open_objects() == 0);
}

TEST_CASE("F07 a plain HDF5 file is read, and cut anywhere it is an error") {
  const TemporaryFolder folder;
  const std::string plain = without_header(sample_bytes());
  put(folder / "f", plain);
  CHECK(same_bits(Hdf5Reader(folder / "f").read("model/head.weight"), numbers({3, 5, 7}, DType::f32)));
  for (std::size_t cut = 0; cut < plain.size(); cut += 97) {
    put(folder / "f", plain.substr(0, cut));
    const std::string message = message_of([&] { read_sample(folder / "f"); });
    CAPTURE(cut);
    CAPTURE(message);
    CHECK(has(message, folder / "f" + ": truncated or corrupt"));
  }
  CHECK(open_objects() == 0);
}

TEST_CASE("F07 any flipped bit is found before a value is returned") {
  const TemporaryFolder folder;
  const RandomKey random{99, 0};
  std::string file = sample_bytes();
  const auto check = [&](std::size_t at, int bit) {
    file[at] = static_cast<char>(file[at] ^ 1 << bit);
    put(folder / "f", file);
    CHECK(has(message_of([&] { read_sample(folder / "f"); }), "truncated or corrupt"));
    file[at] = static_cast<char>(file[at] ^ 1 << bit);
  };
  for (std::size_t at = 0; at < 8; ++at) check(at, 0);  // the magic itself
  for (std::int64_t i = 0; i < 300; ++i)
    check(static_cast<std::size_t>(random.below(2 * i, static_cast<std::int64_t>(file.size()))),
          static_cast<int>(random.below(2 * i + 1, 8)));
  put(folder / "f", file);
  CHECK_NOTHROW(read_sample(folder / "f"));
}

TEST_CASE("a file with a true checksum and false sizes allocates nothing") {
  const TemporaryFolder folder;
  const std::string content = without_header(sample_bytes());
  const std::string dims = bytes_of(3) + bytes_of(5) + bytes_of(7);
  const std::int64_t reserved = memory_stats().reserved, peak = memory_stats().peak_total;
  for (const std::uint64_t extent : {std::uint64_t{1} << 40, std::uint64_t{1} << 60, std::uint64_t{1} << 62,
                                     std::numeric_limits<std::uint64_t>::max(), std::uint64_t{4}}) {
    put(folder / "f", with_header(replaced(content, dims, bytes_of(extent))));
    const std::string message = message_of([&] { Hdf5Reader(folder / "f").read("model/wte.weight"); });
    CAPTURE(extent);
    CAPTURE(message);
    CHECK(has(message, folder / "f"));
    CHECK(has(message, "truncated or corrupt"));
  }
  CHECK(memory_stats().reserved == reserved);
  CHECK(memory_stats().peak_total == peak);
  CHECK(open_objects() == 0);
}

TEST_CASE("data that would lie outside of the file is refused") {
  const TemporaryFolder folder;
  const std::string content = without_header(sample_bytes());
  // The layout of a dataset: the address of its data and their size in bytes.
  const std::size_t data =
      content.find(std::string(reinterpret_cast<const char*>(numbers({3, 5, 7}, DType::f32).raw_data()), 420));
  REQUIRE(data != content.npos);
  const std::string layout = bytes_of(data) + bytes_of(420);
  for (const std::uint64_t address : {content.size(), content.size() - 419, std::uint64_t{1} << 50}) {
    put(folder / "f", with_header(replaced(content, layout, bytes_of(address))));
    const std::string message = message_of([&] { Hdf5Reader(folder / "f").read("model/wte.weight"); });
    CAPTURE(message);
    CHECK(has(message, "truncated or corrupt"));
  }
}

TEST_CASE("reading what is no HDF5 file") {
  const TemporaryFolder folder;
  const auto error = [](const std::string& path) { return message_of([&] { Hdf5Reader reader(path); }); };
  CHECK(has(error(folder / "missing"), folder / "missing" + ": No such file or directory"));
  CHECK(has(error(folder.path.string()), "it is a folder"));
  put(folder / "text", std::string(5000, 't'));
  CHECK(has(error(folder / "text"), "truncated or corrupt"));
}

TEST_CASE("F03 a full disk while saving keeps the old file, and commit can be tried again") {
  const TemporaryFolder folder;
  write_sample(folder / "f");
  const int code = in_child([&] {
    Hdf5Writer writer(folder / "f");
    writer.write("big", numbers({1 << 20}, DType::f32));
    const rlimit small{1 << 20, RLIM_INFINITY}, none{RLIM_INFINITY, RLIM_INFINITY};
    setrlimit(RLIMIT_FSIZE, &small);
    const std::string message = message_of([&] { writer.commit(); });
    if (!has(message, folder / "f") || !has(message, "File too large")) return 1;
    if (read_file(folder / "f") != sample_bytes() || folder.files() != 1) return 2;
    setrlimit(RLIMIT_FSIZE, &none);
    writer.commit();
    return Hdf5Reader(folder / "f").contains("big") ? 0 : 3;
  });
  CHECK(code == 0);
  CHECK(has(message_of([&] { write_sample(folder / "missing/f"); }), "No such file or directory"));
}

TEST_CASE("an abandoned writer leaves nothing") {
  const TemporaryFolder folder;
  { Hdf5Writer(folder / "f").write("a", scalar(1)); }
  CHECK(folder.files() == 0);
  CHECK(open_objects() == 0);
}

TEST_CASE("threads read and write files of their own at once") {
  const TemporaryFolder folder;
  std::vector<std::thread> threads;
  std::atomic<int> right{0};
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      const std::string path = folder / to_text(t);
      for (int i = 0; i < 10; ++i) {
        Hdf5Writer writer(path);
        writer.write("value", scalar(100 * t + i));
        writer.commit();
        right += Hdf5Reader(path).read("value").item() == 100 * t + i;
        right += has(message_of([&] { Hdf5Reader(path).read("none"); }), "no dataset none");
      }
    });
  for (auto& t : threads) t.join();
  CHECK(right == 80);
}

TEST_CASE("slow: F03 a process killed while saving leaves a file that loads") {
  const TemporaryFolder folder;
  const std::string path = folder / "f";
  const auto save = [&](int n) {
    Hdf5Writer writer(path);
    writer.write("values", full({1000 + n % 5}, n));
    writer.commit();
  };
  save(0);
  int last = 0;
  for (int kills = 0; kills < 150; ++kills) {
    const pid_t child = fork();
    if (child == 0) {
      for (int n = last + 1;; ++n) save(n);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(RandomKey{6, 0}.below(kills, 20000)));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    const Tensor values = Hdf5Reader(path).read("values");
    const int n = static_cast<int>(values.at(0));
    REQUIRE(n >= last);
    REQUIRE(same_bits(values, full({1000 + n % 5}, n)));
    last = n;
  }
  CHECK(last > 0);
}
