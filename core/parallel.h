// parallel_for: the only way work is spread over threads. Static split, so a thread count never changes results.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

namespace tapestry {

int num_threads();                // default: the processors this process may use
void set_num_threads(int count);  // 0 restores the default; throws for negative counts

namespace detail {
using RangeFunction = void (*)(void* body, std::int64_t begin, std::int64_t end);
void parallel_for(std::int64_t count, std::int64_t grain, RangeFunction call, void* body);
}  // namespace detail

// Calls body(begin, end) on disjoint ranges that cover [0, count). Runs in the calling thread when count <= grain
// or when already inside a parallel_for. The first exception thrown by a body is rethrown here.
template <class Body>
void parallel_for(std::int64_t count, std::int64_t grain, Body&& body) {
  using Plain = std::remove_reference_t<Body>;
  detail::parallel_for(
      count, grain, [](void* b, std::int64_t begin, std::int64_t end) { (*static_cast<Plain*>(b))(begin, end); },
      const_cast<void*>(static_cast<const void*>(std::addressof(body))));
}

}  // namespace tapestry
