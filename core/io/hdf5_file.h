// HDF5 reading and writing of named tensors and small values, with every error turned into tapestry::Error.
// f16 and bf16 are stored as u16 with the attribute "dtype"; u8, i32, i64, f32 and f64 are native.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/tensor.h"

namespace tapestry {

// Collects a file in memory and writes it with replace_file: the old file survives every failure.
class Hdf5Writer {
 public:
  explicit Hdf5Writer(std::string path);
  ~Hdf5Writer();
  void write(const std::string& name, const Tensor& tensor);        // "group/sub/name"; groups are made as needed
  void write_text(const std::string& name, std::string_view text);  // any length, any bytes (an u8 dataset)
  void link(const std::string& name, const std::string& existing);  // a second name for a dataset
  void commit();                                                    // throws and leaves `path` as it was on failure

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Opens a file; throws with the path and "truncated or corrupt" where HDF5 cannot read it. Sizes are checked against
// the file before anything is allocated.
class Hdf5Reader {
 public:
  explicit Hdf5Reader(std::string path);
  ~Hdf5Reader();
  bool contains(const std::string& name) const;
  std::vector<std::string> names(const std::string& group) const;  // of all tensors below it, sorted, relative
  struct Info {
    Shape shape;
    DType dtype;
  };
  Info info(const std::string& name) const;
  Tensor read(const std::string& name) const;
  void read_into(const std::string& name, Tensor& target) const;  // equal shape and dtype
  std::string read_text(const std::string& name) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tapestry
