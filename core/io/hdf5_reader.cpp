// Hdf5Reader: the whole file in memory, its checksum verified, before HDF5 parses a byte of it.
#include <hdf5.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "core/io/atomic_file.h"
#include "core/io/hdf5_detail.h"
#include "core/io/hdf5_file.h"

namespace tapestry {

using namespace detail;

namespace {

constexpr std::string_view kHdf5Magic = "\211HDF\r\n\032\n";

// HDF5 reads the caller's memory in place: where it would allocate and copy, it gets that memory itself.
void* use_image(std::size_t, H5FD_file_image_op_t, void* image) { return image; }
void* keep_image(void* target, const void*, std::size_t, H5FD_file_image_op_t, void*) { return target; }
void* never_grow(void*, std::size_t, H5FD_file_image_op_t, void*) { return nullptr; }
herr_t never_free(void*, H5FD_file_image_op_t, void*) { return 0; }
void* share_data(void* image) { return image; }
herr_t keep_data(void*) { return 0; }

struct DatasetInfo {
  Shape shape;
  DType dtype;
  bool text;
};

}  // namespace

struct Hdf5Reader::Impl : Hdf5File {
  std::string image;  // outlives the id, which reads it

  ~Impl() { id = Hdf5Handle(); }
  void verify();
  void open();
  Hdf5Handle dataset(const std::string& name) const;
  DatasetInfo info(const Hdf5Handle& dataset, const std::string& name) const;
  Shape shape(const Hdf5Handle& dataset, const std::string& name, std::int64_t element_bytes) const;
  std::string attribute(const Hdf5Handle& dataset, const std::string& name) const;
  Hdf5Handle tensor(const std::string& name, DatasetInfo& info) const;
  void read(const Hdf5Handle& dataset, const std::string& name, DType dtype, std::int64_t numel, void* data) const;
};

void Hdf5Reader::Impl::verify() {
  const std::string_view all = image;
  if (all.starts_with(kHdf5Magic)) return;  // of another program
  if (all.size() < kHdf5HeaderBytes || !all.starts_with(kHdf5HeaderMagic))
    fail("truncated or corrupt: the ", all.size(), " bytes do not begin like an HDF5 file");
  if (all.substr(0, kHdf5HeaderBytes) != hdf5_header(all.substr(kHdf5HeaderBytes)))
    fail("truncated or corrupt: size or checksum differ from the header");
}

void Hdf5Reader::Impl::open() {
  const Hdf5Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  H5FD_file_image_callbacks_t callbacks = {use_image,  keep_image, never_grow,  never_free,
                                           share_data, keep_data,  image.data()};
  check(H5Pset_fapl_core(access, 4096, false), "preparing");
  check(H5Pset_file_image_callbacks(access, &callbacks), "preparing");
  check(H5Pset_file_image(access, image.data(), image.size()), "preparing");
  id = Hdf5Handle(H5Fopen(memory_name().c_str(), H5F_ACC_RDONLY, access), H5Fclose);
  check(id, "truncated or corrupt");
}

Hdf5Handle Hdf5Reader::Impl::dataset(const std::string& name) const {
  Hdf5Handle dataset = open_dataset(name);
  if (dataset < 0) fail("there is no dataset ", name);
  return dataset;
}

std::string Hdf5Reader::Impl::attribute(const Hdf5Handle& dataset, const std::string& name) const {
  const htri_t exists = check(H5Aexists(dataset, kHdf5DTypeAttribute), name);
  if (!exists) return {};
  const Hdf5Handle attribute(H5Aopen(dataset, kHdf5DTypeAttribute, H5P_DEFAULT), H5Aclose);
  const Hdf5Handle type(H5Aget_type(check(attribute, name)), H5Tclose), space(H5Aget_space(attribute), H5Sclose);
  std::array<char, 16> value{};
  const bool plain = H5Tget_class(type) == H5T_STRING && H5Tis_variable_str(type) == 0 &&
                     H5Tget_size(type) <= value.size() && H5Sget_simple_extent_npoints(space) == 1;
  if (!plain) fail(name, ": the attribute \"dtype\" is no short text");
  check(H5Aread(attribute, type, value.data()), name);
  return std::string(value.data(), strnlen(value.data(), value.size()));
}

// Nothing but data that lies whole inside this file passes, so a false extent cannot make the caller allocate.
Shape Hdf5Reader::Impl::shape(const Hdf5Handle& dataset, const std::string& name, std::int64_t element_bytes) const {
  const Hdf5Handle options(H5Dget_create_plist(dataset), H5Pclose), space(H5Dget_space(dataset), H5Sclose);
  check(options, name);
  check(space, name);
  const H5D_layout_t layout = H5Pget_layout(options);
  if ((layout != H5D_CONTIGUOUS && layout != H5D_COMPACT) || H5Pget_external_count(options) != 0)
    fail(name, " is chunked, compressed or stored elsewhere; store it contiguously");
  const int rank = H5Sget_simple_extent_ndims(space);
  if (H5Sget_simple_extent_type(space) == H5S_NULL || rank < 0 || rank > Shape::kMaxRank)
    fail(name, " has rank ", rank, "; at most ", Shape::kMaxRank, " is possible");
  std::array<hsize_t, Shape::kMaxRank> claimed{};
  check(H5Sget_simple_extent_dims(space, claimed.data(), nullptr), name);
  std::array<std::int64_t, Shape::kMaxRank> dims{};
  const auto limit = static_cast<hsize_t>(std::numeric_limits<std::int64_t>::max());
  hsize_t bytes = static_cast<hsize_t>(element_bytes);
  for (int i = 0; i < rank; ++i) {
    const hsize_t extent = claimed[static_cast<std::size_t>(i)];
    if (__builtin_mul_overflow(bytes, extent, &bytes) || extent > limit)
      fail(name, " claims more bytes than an address can count: truncated or corrupt");
    dims[static_cast<std::size_t>(i)] = static_cast<std::int64_t>(extent);
  }
  const hsize_t stored = H5Dget_storage_size(dataset);
  if (bytes > image.size() || (bytes > 0 && stored != bytes))
    fail(name, " claims ", bytes, " bytes, the file of ", image.size(), " stores ", stored,
         " for it: truncated or corrupt");
  const haddr_t offset = H5Dget_offset(dataset);
  if (bytes > 0 && layout == H5D_CONTIGUOUS && (offset == HADDR_UNDEF || offset > image.size() - bytes))
    fail(name, " lies outside of the file: truncated or corrupt");
  return Shape(std::span<const std::int64_t>(dims.data(), static_cast<std::size_t>(rank)));
}

DatasetInfo Hdf5Reader::Impl::info(const Hdf5Handle& dataset, const std::string& name) const {
  const Hdf5Handle type(H5Dget_type(dataset), H5Tclose);
  check(type, name);
  const std::string attribute = this->attribute(dataset, name);
  const bool text = attribute == kHdf5Text;
  for (const DType dtype : {DType::f64, DType::f32, DType::i64, DType::i32, DType::u8, DType::f16, DType::bf16}) {
    const bool named =
        stored_as_u16(dtype) ? attribute == name_of(dtype) : attribute.empty() || (text && dtype == DType::u8);
    if (named && H5Tequal(type, hdf5_element_type(dtype)) > 0)
      return {shape(dataset, name, size_of(dtype)), dtype, text};
  }
  fail(name, " has an element type that is not f64, f32, f16, bf16, i64, i32 or u8 (little endian)");
}

void Hdf5Reader::Impl::read(const Hdf5Handle& dataset, const std::string& name, DType dtype, std::int64_t numel,
                            void* data) const {
  if (numel == 0) return;
  check(H5Dread(dataset, hdf5_element_type(dtype), H5S_ALL, H5S_ALL, H5P_DEFAULT, data), name,
        ": truncated or corrupt");
}

Hdf5Handle Hdf5Reader::Impl::tensor(const std::string& name, DatasetInfo& info) const {
  Hdf5Handle dataset = this->dataset(name);
  info = this->info(dataset, name);
  if (info.text) fail(name, " is a text, not a tensor");
  return dataset;
}

Hdf5Reader::Hdf5Reader(std::string path) {
  const Hdf5Session session;
  auto file = std::make_unique<Impl>();
  file->path = std::move(path);
  file->image = read_file(file->path);
  file->verify();
  file->open();
  impl_ = std::move(file);
}

Hdf5Reader::~Hdf5Reader() {
  const Hdf5Session session;
  impl_.reset();
}

bool Hdf5Reader::contains(const std::string& name) const {
  const Hdf5Session session;
  return impl_->open_dataset(name) >= 0;
}

std::vector<std::string> Hdf5Reader::names(const std::string& group) const {
  const Hdf5Session session;
  std::vector<std::string> links;
  const auto collect = [](hid_t, const char* name, const H5L_info_t* link, void* data) -> herr_t {
    if (link->type == H5L_TYPE_HARD) static_cast<std::vector<std::string>*>(data)->emplace_back(name);
    return 0;
  };
  const bool root = group.empty() || group == "/";
  const Hdf5Handle top = impl_->open_group(group);
  if (top < 0) return {};
  impl_->check(H5Lvisit(top, H5_INDEX_NAME, H5_ITER_INC, collect, &links), "listing ", group);
  std::vector<std::string> tensors;
  for (std::string& link : links) {
    const std::string name = root ? link : text_of(group, "/", link);
    const Hdf5Handle dataset = impl_->open_dataset(name);
    if (dataset >= 0 && impl_->attribute(dataset, name) != kHdf5Text) tensors.push_back(std::move(link));
  }
  std::sort(tensors.begin(), tensors.end());
  return tensors;
}

Hdf5Reader::Info Hdf5Reader::info(const std::string& name) const {
  const Hdf5Session session;
  DatasetInfo info;
  impl_->tensor(name, info);
  return {info.shape, info.dtype};
}

Tensor Hdf5Reader::read(const std::string& name) const {
  const Hdf5Session session;
  DatasetInfo info;
  const Hdf5Handle dataset = impl_->tensor(name, info);
  Tensor result = empty(info.shape, info.dtype);
  impl_->read(dataset, name, info.dtype, result.numel(), result.mutable_raw_data());
  return result;
}

void Hdf5Reader::read_into(const std::string& name, Tensor& target) const {
  const Hdf5Session session;
  DatasetInfo info;
  const Hdf5Handle dataset = impl_->tensor(name, info);
  if (!target || info.shape != target.shape() || info.dtype != target.dtype())
    impl_->fail(name, " is ", info.shape, " ", info.dtype, ", but the target is ", target.shape(), " ", target.dtype());
  impl_->read(dataset, name, info.dtype, target.numel(), target.mutable_raw_data());
}

std::string Hdf5Reader::read_text(const std::string& name) const {
  const Hdf5Session session;
  const Hdf5Handle dataset = impl_->dataset(name);
  const DatasetInfo info = impl_->info(dataset, name);
  if (!info.text) impl_->fail(name, " is a tensor, not a text");
  std::string text(static_cast<std::size_t>(info.shape.numel()), '\0');
  impl_->read(dataset, name, DType::u8, info.shape.numel(), text.data());
  return text;
}

}  // namespace tapestry
