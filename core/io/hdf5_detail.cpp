// Errors, names, header and element types of our HDF5 files.
#include "core/io/hdf5_detail.h"

#include <hdf5.h>

#include <algorithm>
#include <bit>
#include <mutex>
#include <span>

#include "core/io/hash.h"

namespace tapestry::detail {

static_assert(std::is_same_v<Hdf5Id, hid_t> && std::is_same_v<int, herr_t>);
static_assert(std::endian::native == std::endian::little, "tensors are stored as they lie in memory");

namespace {
std::mutex& one_at_a_time() {
  static std::mutex mutex;
  return mutex;
}
}  // namespace

Hdf5Session::Hdf5Session() {
  one_at_a_time().lock();
  H5Eget_auto2(H5E_DEFAULT, &print_, &print_data_);
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
}

Hdf5Session::~Hdf5Session() {
  H5Eclear2(H5E_DEFAULT);
  H5Eset_auto2(H5E_DEFAULT, print_, print_data_);
  one_at_a_time().unlock();
}

std::string hdf5_reason() {
  std::string text;
  const auto append = [](unsigned, const H5E_error2_t* error, void* data) -> herr_t {
    if (error->desc && *error->desc) static_cast<std::string*>(data)->append(": ").append(error->desc);
    return 0;
  };
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_DOWNWARD, append, &text);
  return text;
}

bool Hdf5File::reachable(const std::string& name) const {
  if (!hdf5_name_fault(name).empty()) return false;
  for (std::size_t end = 0; end != name.npos;) {
    end = name.find('/', end ? end + 1 : 0);
    const std::string prefix = name.substr(0, end);
    H5L_info_t link;
    if (H5Lexists(id, prefix.c_str(), H5P_DEFAULT) <= 0) return false;
    if (H5Lget_info(id, prefix.c_str(), &link, H5P_DEFAULT) < 0 || link.type != H5L_TYPE_HARD) return false;
  }
  return true;
}

Hdf5Handle Hdf5File::open_object(const std::string& name, bool group) const {
  Hdf5Handle object(H5Oopen(id, name.c_str(), H5P_DEFAULT), H5Oclose);
  check(object, name, ": truncated or corrupt");
  return H5Iget_type(object) == (group ? H5I_GROUP : H5I_DATASET) ? std::move(object) : Hdf5Handle();
}

Hdf5Handle Hdf5File::open_dataset(const std::string& name) const {
  return reachable(name) ? open_object(name, false) : Hdf5Handle();
}

Hdf5Handle Hdf5File::open_group(const std::string& name) const {
  if (name.empty() || name == "/") return open_object("/", true);
  return reachable(name) ? open_object(name, true) : Hdf5Handle();
}

std::string_view hdf5_name_fault(std::string_view name) {
  if (name.find('\0') != name.npos) return "it holds a NUL";
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t end = std::min(name.find('/', begin), name.size());
    if (end == begin) return "it has an empty part";
    if (name.substr(begin, end - begin) == ".") return "it has the part \".\"";
    begin = end + 1;
  }
  return {};
}

std::string hdf5_header(std::string_view content) {
  const std::string hash = hash_hex(std::as_bytes(std::span(content)));
  std::string header = text_of(kHdf5HeaderMagic, "bytes ", content.size(), "\nxxh3_128 ", hash, "\n");
  header.resize(kHdf5HeaderBytes);
  return header;
}

Hdf5Id hdf5_element_type(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return H5T_IEEE_F64LE;
    case DType::f32:
      return H5T_IEEE_F32LE;
    case DType::f16:
    case DType::bf16:
      return H5T_STD_U16LE;
    case DType::i64:
      return H5T_STD_I64LE;
    case DType::i32:
      return H5T_STD_I32LE;
    case DType::u8:
      return H5T_STD_U8LE;
  }
  fail("hdf5: not a dtype");
}

}  // namespace tapestry::detail

namespace tapestry {

std::string hdf5_version() {
  unsigned major = 0, minor = 0, release = 0;
  H5get_libversion(&major, &minor, &release);
  return text_of(major, ".", minor, ".", release);
}

}  // namespace tapestry
