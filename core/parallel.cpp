// parallel_for on a pool of std::thread that spins briefly and then sleeps, or on OpenMP where the build asks for it
// (never under ThreadSanitizer, which does not understand libgomp's barriers).
#include "core/parallel.h"

#include <omp.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "core/error.h"

namespace tapestry {

namespace {

std::atomic<int> thread_count{0};  // 0: the default
thread_local bool inside_parallel_for = false;

// The part of [0, count) that worker `index` of `workers` gets.
struct Range {
  std::int64_t begin, end;
};
Range part(std::int64_t count, std::int64_t index, std::int64_t workers) {
  return {count * index / workers, count * (index + 1) / workers};
}

struct Job {
  std::int64_t count;
  int workers;
  detail::RangeFunction call;
  void* body;
  std::mutex mutex;
  std::exception_ptr error;

  void run(int index) noexcept {
    const auto [begin, end] = part(count, index, workers);
    if (begin == end) return;
    inside_parallel_for = true;
    try {
      call(body, begin, end);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
    }
    inside_parallel_for = false;
  }
};

#if TAPESTRY_THREAD_POOL || defined(__SANITIZE_THREAD__)

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Waits for ready() by spinning for a few microseconds, about what a wake-up costs, then by offering the processor to
// whoever else needs it, and then by sleeping on `cv`.
template <class Ready>
void wait_until(std::mutex& mutex, std::condition_variable& cv, Ready ready) {
  constexpr int kSpins = 500, kYields = 500;
  for (int i = 0; i < kSpins + kYields; ++i) {
    if (ready()) return;
    i < kSpins ? pause() : std::this_thread::yield();
  }
  std::unique_lock lock(mutex);
  cv.wait(lock, ready);
}

class ThreadPool {
 public:
  // Returns false when another thread is using the pool.
  bool run(Job& job) {
    const std::unique_lock use(in_use_, std::try_to_lock);
    if (!use) return false;
    while (static_cast<int>(threads_.size()) < job.workers - 1)
      threads_.emplace_back([this, index = static_cast<int>(threads_.size()) + 1, seen = generation_.load()]() mutable {
        work(index, seen);
      });
    job_.store(&job);
    pending_.store(static_cast<int>(threads_.size()));
    publish(start_, [&] { generation_.fetch_add(1); });
    job.run(0);
    wait_until(mutex_, done_, [&] { return pending_.load() == 0; });
    return true;
  }

 private:
  // Changes what a waiter looks at. The lock makes sure that one about to sleep does not miss it.
  template <class Change>
  void publish(std::condition_variable& cv, Change change) {
    {
      const std::lock_guard lock(mutex_);
      change();
    }
    cv.notify_all();
  }

  void work(int index, std::uint64_t seen) {
    for (;;) {
      wait_until(mutex_, start_, [&] { return generation_.load() != seen; });
      ++seen;
      Job& job = *job_.load();
      if (index < job.workers) job.run(index);
      if (pending_.fetch_sub(1) == 1) publish(done_, [] {});
    }
  }

  std::mutex in_use_, mutex_;
  std::condition_variable start_, done_;
  std::vector<std::thread> threads_;
  std::atomic<Job*> job_{nullptr};
  std::atomic<int> pending_{0};
  std::atomic<std::uint64_t> generation_{0};
};

std::atomic<bool> forked{false};  // the threads of the pool do not exist in a forked child

void run_job(Job& job) {
  static ThreadPool& pool = *[] {
    pthread_atfork(nullptr, nullptr, [] { forked.store(true); });
    return new ThreadPool;  // never destroyed: work may come as long as the process lives
  }();
  if (forked.load() || !pool.run(job))
    for (int i = 0; i < job.workers; ++i) job.run(i);
}

#else

void run_job(Job& job) {
#pragma omp parallel num_threads(job.workers)
  {
    // The team may be smaller than asked for; the parts, and so the results, stay the same.
    for (int i = omp_get_thread_num(); i < job.workers; i += omp_get_num_threads()) job.run(i);
  }
}

#endif

}  // namespace

int num_threads() {
  static const int processors = omp_get_num_procs();  // asks the system each time
  const int count = thread_count.load(std::memory_order_relaxed);
  return count > 0 ? count : processors;
}

void set_num_threads(int count) {
  TAP_CHECK(count >= 0, "set_num_threads: the count must not be negative (0 means all processors), not ", count);
  thread_count.store(count, std::memory_order_relaxed);
}

void detail::parallel_for(std::int64_t count, std::int64_t grain, RangeFunction call, void* body) {
  if (count <= 0) return;
  if (count <= grain || inside_parallel_for) return call(body, 0, count);
  const std::int64_t parts = std::min<std::int64_t>(num_threads(), (count - 1) / std::max<std::int64_t>(grain, 1) + 1);
  if (parts <= 1) return call(body, 0, count);
  Job job{count, static_cast<int>(parts), call, body, {}, {}};
  run_job(job);
  if (job.error) std::rethrow_exception(job.error);
}

}  // namespace tapestry
