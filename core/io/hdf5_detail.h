// What the HDF5 writer and reader share: handles, errors, the header, names and element types. Kept free of <hdf5.h>,
// so the types of its C API appear here as the plain integers that they are.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "core/dtype.h"

namespace tapestry::detail {

using Hdf5Id = std::int64_t;  // hid_t

// Owns one id and closes it with the function that its kind asks for.
class Hdf5Handle {
 public:
  using Close = int (*)(Hdf5Id);
  Hdf5Handle() = default;
  Hdf5Handle(Hdf5Id id, Close close) : id_(id), close_(close) {}
  Hdf5Handle(Hdf5Handle&& other) noexcept : id_(std::exchange(other.id_, -1)), close_(other.close_) {}
  Hdf5Handle& operator=(Hdf5Handle other) noexcept {
    std::swap(id_, other.id_);
    std::swap(close_, other.close_);
    return *this;
  }
  ~Hdf5Handle() {
    if (id_ >= 0) close_(id_);
  }
  operator Hdf5Id() const { return id_; }  // negative: nothing

 private:
  Hdf5Id id_ = -1;
  Close close_ = nullptr;
};

// Lives around every use of HDF5: one thread at a time (the library may be built without locks of its own), and no
// printing of errors, which become texts of exceptions instead.
class Hdf5Session {
 public:
  Hdf5Session();
  ~Hdf5Session();
  Hdf5Session(const Hdf5Session&) = delete;
  Hdf5Session& operator=(const Hdf5Session&) = delete;

 private:
  int (*print_)(Hdf5Id, void*) = nullptr;
  void* print_data_ = nullptr;
};

std::string hdf5_reason();  // what HDF5 says about its last failure, from the outermost call to the cause

struct Hdf5File {
  std::string path;
  Hdf5Handle id;

  template <class... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    tapestry::fail("hdf5: ", path, ": ", parts...);
  }
  // Passes a result of HDF5 on; throws where it is negative.
  template <class... Parts>
  std::int64_t check(std::int64_t result, const Parts&... what) const {
    if (result < 0) fail(what..., hdf5_reason());
    return result;
  }
  // HDF5 takes two open files of one name for the same file, so what lives in memory gets a name of its own.
  std::string memory_name() const { return text_of("memory:", reinterpret_cast<std::uintptr_t>(this)); }
  // The object `name`, or a negative handle where there is none of that kind. Followed through hard links only: others
  // may lead out of the file. Throws where a link leads to nothing that can be opened.
  Hdf5Handle open_dataset(const std::string& name) const;
  Hdf5Handle open_group(const std::string& name) const;  // "" and "/" are the root

 private:
  bool reachable(const std::string& name) const;
  Hdf5Handle open_object(const std::string& name, bool group) const;
};

// Why `name` is no path of plain parts such as "a/b.c"; empty if it is one.
std::string_view hdf5_name_fault(std::string_view name);

inline constexpr std::size_t kHdf5HeaderBytes = 512;  // the smallest "user block" that HDF5 knows
inline constexpr std::string_view kHdf5HeaderMagic = "Tapestry HDF5 1\n";
std::string hdf5_header(std::string_view content);  // of a file whose HDF5 part is `content`: its size and checksum

// The attribute that tells what a dataset holds where its element type does not: "f16", "bf16" or "text".
inline constexpr char kHdf5DTypeAttribute[] = "dtype";
inline constexpr std::string_view kHdf5Text = "text";
constexpr bool stored_as_u16(DType dtype) { return dtype == DType::f16 || dtype == DType::bf16; }
Hdf5Id hdf5_element_type(DType dtype);

}  // namespace tapestry::detail
