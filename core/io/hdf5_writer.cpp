// Hdf5Writer: fills HDF5's in-memory ("core") file and hands its bytes to replace_file, so every disk error is ours.
#include <hdf5.h>

#include <algorithm>
#include <array>

#include "core/io/atomic_file.h"
#include "core/io/hdf5_detail.h"
#include "core/io/hdf5_file.h"

namespace tapestry {

using namespace detail;

struct Hdf5Writer::Impl : Hdf5File {
  Hdf5Handle access{H5Pcreate(H5P_FILE_ACCESS), H5Pclose};
  Hdf5Handle link_options{H5Pcreate(H5P_LINK_CREATE), H5Pclose};
  Hdf5Handle dataset_options{H5Pcreate(H5P_DATASET_CREATE), H5Pclose};

  void check_name(const std::string& name) const {
    if (id < 0) fail("the file is already committed");
    const std::string_view fault = hdf5_name_fault(name);
    if (!fault.empty()) fail("a dataset cannot be named so, ", fault, ": \"", name, "\"");
  }

  void write(const std::string& name, const Shape& shape, DType dtype, std::string_view attribute, const void* data) {
    check_name(name);
    std::array<hsize_t, Shape::kMaxRank> dims{};
    std::copy(shape.dims().begin(), shape.dims().end(), dims.begin());
    const Hdf5Handle space(shape.rank() ? H5Screate_simple(shape.rank(), dims.data(), nullptr) : H5Screate(H5S_SCALAR),
                           H5Sclose);
    check(space, name);
    const Hdf5Handle dataset(
        H5Dcreate2(id, name.c_str(), hdf5_element_type(dtype), space, link_options, dataset_options, H5P_DEFAULT),
        H5Dclose);
    check(dataset, "writing ", name);
    if (!attribute.empty()) write_attribute(dataset, name, attribute);
    if (shape.numel() > 0)
      check(H5Dwrite(dataset, hdf5_element_type(dtype), H5S_ALL, H5S_ALL, H5P_DEFAULT, data), "writing ", name);
  }

  void write_attribute(hid_t dataset, const std::string& name, std::string_view value) {
    const Hdf5Handle type(H5Tcopy(H5T_C_S1), H5Tclose), space(H5Screate(H5S_SCALAR), H5Sclose);
    check(H5Tset_size(type, value.size()), name);
    check(H5Tset_strpad(type, H5T_STR_NULLPAD), name);
    const Hdf5Handle attribute(H5Acreate2(dataset, kHdf5DTypeAttribute, type, space, H5P_DEFAULT, H5P_DEFAULT),
                               H5Aclose);
    check(attribute, "writing ", name);
    check(H5Awrite(attribute, type, value.data()), "writing ", name);
  }
};

Hdf5Writer::Hdf5Writer(std::string path) {
  const Hdf5Session session;
  auto file = std::make_unique<Impl>();
  file->path = std::move(path);
  // Memory grows by a mebibyte at a time and nothing is written when the file is closed.
  file->check(H5Pset_fapl_core(file->access, std::size_t{1} << 20, false), "preparing");
  file->check(H5Pset_create_intermediate_group(file->link_options, 1), "preparing");
  file->check(H5Pset_char_encoding(file->link_options, H5T_CSET_UTF8), "preparing");
  // Without times the same content gives the same bytes.
  file->check(H5Pset_obj_track_times(file->dataset_options, false), "preparing");
  file->check(H5Pset_fill_time(file->dataset_options, H5D_FILL_TIME_NEVER), "preparing");
  const Hdf5Handle options(H5Pcreate(H5P_FILE_CREATE), H5Pclose);
  file->check(H5Pset_userblock(options, kHdf5HeaderBytes), "preparing");
  file->id = Hdf5Handle(H5Fcreate(file->memory_name().c_str(), H5F_ACC_TRUNC, options, file->access), H5Fclose);
  file->check(file->id, "preparing");
  impl_ = std::move(file);
}

Hdf5Writer::~Hdf5Writer() {
  const Hdf5Session session;
  impl_.reset();
}

void Hdf5Writer::write(const std::string& name, const Tensor& tensor) {
  const Hdf5Session session;
  if (!tensor) impl_->fail(name, " is an empty tensor handle");
  const std::string_view attribute = stored_as_u16(tensor.dtype()) ? name_of(tensor.dtype()) : "";
  impl_->write(name, tensor.shape(), tensor.dtype(), attribute, tensor.raw_data());
}

void Hdf5Writer::write_text(const std::string& name, std::string_view text) {
  const Hdf5Session session;
  impl_->write(name, {static_cast<std::int64_t>(text.size())}, DType::u8, kHdf5Text, text.data());
}

void Hdf5Writer::link(const std::string& name, const std::string& existing) {
  const Hdf5Session session;
  impl_->check_name(name);
  if (impl_->open_dataset(existing) < 0) impl_->fail("cannot link ", name, ": there is no ", existing);
  impl_->check(
      H5Lcreate_hard(impl_->id, existing.c_str(), H5L_SAME_LOC, name.c_str(), impl_->link_options, H5P_DEFAULT),
      "linking ", name);
}

void Hdf5Writer::commit() {
  const Hdf5Session session;
  Impl& file = *impl_;
  if (file.id < 0) file.fail("the file is already committed");
  file.check(H5Fflush(file.id, H5F_SCOPE_GLOBAL), "flushing");
  // The driver's handle is a pointer to the memory that holds the file, so no second copy is made.
  void* handle = nullptr;
  file.check(H5Fget_vfd_handle(file.id, file.access, &handle), "flushing");
  char* const image = *static_cast<char**>(handle);
  const auto size = static_cast<std::size_t>(file.check(H5Fget_file_image(file.id, nullptr, 0), "flushing"));
  const std::string header = hdf5_header({image + kHdf5HeaderBytes, size});
  std::copy(header.begin(), header.end(), image);
  replace_file(file.path, std::string_view(image, kHdf5HeaderBytes + size));
  file.id = Hdf5Handle();
}

}  // namespace tapestry
