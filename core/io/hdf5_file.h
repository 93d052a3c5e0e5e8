// HDF5 reading and writing of named tensors and texts, with every error turned into tapestry::Error.
// A file is a 512-byte text header with size and checksum (to HDF5 a "user block") and then plain HDF5 that any tool
// opens. f16 and bf16 are stored as u16 with the attribute "dtype", texts as u8 with it; the rest is native.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/tensor.h"

namespace tapestry {

std::string hdf5_version();  // of the library at run time: "1.10.8"

// Collects a file in memory and writes it with replace_file: the old file survives every failure. The same content
// gives the same bytes. Names are "group/sub/name"; groups are made as needed, and a name is written once.
class Hdf5Writer {
 public:
  explicit Hdf5Writer(std::string path);
  ~Hdf5Writer();
  void write(const std::string& name, const Tensor& tensor);        // any shape, rank 0 and empty ones too
  void write_text(const std::string& name, std::string_view text);  // any length, any bytes
  void link(const std::string& name, const std::string& existing);  // a second name for a dataset
  void commit();  // once; throws and leaves `path` as it was on failure

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Reads a whole file and checks it before HDF5 sees it; throws with the path and "truncated or corrupt". Files of other
// programs, without the header, are read as well, without the checksum. Sizes that a file claims are checked before
// anything is allocated. A path inside the file is followed through hard links only. The checksum guards against
// accidents; a file made to attack HDF5 itself has a true one, so read files of strangers in a process of their own.
class Hdf5Reader {
 public:
  explicit Hdf5Reader(std::string path);
  ~Hdf5Reader();
  bool contains(const std::string& name) const;                    // a tensor or a text
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
