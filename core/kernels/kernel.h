// How kernels are declared and called. A contract header declares each kernel once; the twins cpu::name and gpu::name
// follow from it, and a build with a GPU fails to link if one is missing.
#pragma once

#include <concepts>
#include <optional>

#include "core/grad.h"
#include "core/tensor.h"

// Marks a formula that is compiled for the CPU and for CUDA.
#ifdef __CUDACC__
#define TAP_HD __host__ __device__
#else
#define TAP_HD
#endif

// TAP_KERNEL(name, parameters...): declares the twins. Outputs are Tensor& or Grad, inputs const Tensor&.
#define TAP_KERNEL(name, ...) \
  namespace cpu {             \
  void name(__VA_ARGS__);     \
  }                           \
  namespace gpu {             \
  void name(__VA_ARGS__);     \
  }

// For what has no sensible GPU form: calling it with GPU tensors throws.
#define TAP_KERNEL_CPU(name, ...)                                                   \
  namespace cpu {                                                                   \
  void name(__VA_ARGS__);                                                           \
  }                                                                                 \
  namespace gpu {                                                                   \
  template <class... Args>                                                          \
  void name(const Args&...) {                                                       \
    ::tapestry::fail(#name, ": has no GPU kernel; move its inputs to Device::cpu"); \
  }                                                                                 \
  }

// TAP_DISPATCH(name, arguments...): checks that every tensor among the arguments is on one device and calls the twin.
#define TAP_DISPATCH(name, ...)                                                         \
  [&](auto&&... args) {                                                                 \
    if (::tapestry::detail::common_device(#name, args...) == ::tapestry::Device::cpu) { \
      cpu::name(args...);                                                               \
    } else if constexpr (::tapestry::kHasGpu) {                                         \
      gpu::name(args...);                                                               \
    } else {                                                                            \
      ::tapestry::fail(#name, ": this build has no GPU backend");                       \
    }                                                                                   \
  }(__VA_ARGS__)

namespace tapestry::detail {

// Structs that carry tensors into a kernel provide for_each_tensor(f).
template <class T>
concept CarriesTensors = requires(const T& t) {
  t.for_each_tensor([](const Tensor&) {});
};

template <class... Args>
Device common_device(const char* kernel, const Args&... args) {
  std::optional<Device> found;
  auto see = [&](Device device) {
    TAP_CHECK(!found || *found == device, kernel, ": tensors are on different devices (", *found, " and ", device,
              "); move them with to(device)");
    found = device;
  };
  auto look = [&]<class T>(const T& arg) {
    if constexpr (std::same_as<T, Tensor>) {
      if (arg) see(arg.device());
    } else if constexpr (CarriesTensors<T>) {
      arg.for_each_tensor([&](const Tensor& t) {
        if (t) see(t.device());
      });
    }
  };
  (look(args), ...);
  return found.value_or(Device::cpu);
}

}  // namespace tapestry::detail
