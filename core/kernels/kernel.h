// How kernels are declared and called. A contract header declares each kernel once; the twins cpu::name and gpu::name
// follow from it, and a build with a GPU fails to link if one is missing.
#pragma once

#include <concepts>
#include <optional>

#include "core/grad.h"
#include "core/kernels/widen.h"
#include "core/tensor.h"

// Marks a formula that is compiled for the CPU and for CUDA.
#ifdef __CUDACC__
#define TAP_HD __host__ __device__
#else
#define TAP_HD
#endif

// TAP_KERNEL(name, parameters...): declares the twins. Outputs are Tensor& or Grad, inputs const Tensor&. The CPU code
// knows f32 and f64 only: TAP_DISPATCH hands it f32 copies of what is f16 or bf16 and rounds the results once.
#define TAP_KERNEL(name, ...) TAP_DECLARE_KERNEL(name, false, __VA_ARGS__)

// The same for CPU code that reads and writes f16 and bf16 itself, computing in f32: for what must be fast.
#define TAP_KERNEL_16BIT(name, ...) TAP_DECLARE_KERNEL(name, true, __VA_ARGS__)

#define TAP_DECLARE_KERNEL(name, knows_16bit, ...)        \
  inline constexpr bool name##_knows_16bit = knows_16bit; \
  namespace cpu {                                         \
  void name(__VA_ARGS__);                                 \
  }                                                       \
  namespace gpu {                                         \
  void name(__VA_ARGS__);                                 \
  }

// For what has no sensible GPU form: calling it with GPU tensors throws.
#define TAP_KERNEL_CPU(name, ...)                                                   \
  inline constexpr bool name##_knows_16bit = false;                                 \
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
      if constexpr (name##_knows_16bit) {                                               \
        cpu::name(args...);                                                             \
      } else {                                                                          \
        ::tapestry::detail::call_widened(&cpu::name, args...);                          \
      }                                                                                 \
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
