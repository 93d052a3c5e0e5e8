// The pool: blocks of fixed size classes, carved from huge-page regions and never given back to the system, since a
// page fault costs more than the copy it serves. A freed block goes to the cache of the thread that asked for it, or to
// the central lists when another thread frees it.
#include "core/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <mutex>
#include <vector>

#include "core/instruction_set.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, size) ((void)0)
#define ASAN_UNPOISON_MEMORY_REGION(address, size) ((void)0)
#endif

namespace tapestry {

namespace {

using Block = Storage::Block;

constexpr std::int64_t kAlignment = 64;
constexpr std::int64_t kHugePage = std::int64_t{2} << 20;
constexpr std::uintptr_t kPage = 4096;
constexpr std::int64_t kRegion = std::int64_t{64} << 20;
constexpr int kSizeClasses = 448;

// Multiples of 64 bytes up to 1 KiB, then eight steps for each doubling: at most an eighth is wasted.
int size_class_of(std::int64_t bytes) {
  const std::int64_t units = std::max<std::int64_t>(1, (bytes + kAlignment - 1) / kAlignment);
  if (units <= 16) return static_cast<int>(units) - 1;
  const int shift = std::bit_width(static_cast<std::uint64_t>(units - 1)) - 4;
  return 8 * shift + static_cast<int>((units - 1) >> shift);
}
std::int64_t capacity_of(int size_class) {
  if (size_class < 16) return (size_class + 1) * kAlignment;
  const int shift = (size_class - 8) / 8;
  return ((size_class - 8 * shift + 1) * kAlignment) << shift;
}

struct Counter {
  std::atomic<std::int64_t> current{0}, peak{0};
  void add(std::int64_t bytes) {
    const std::int64_t now = current.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    std::int64_t seen = peak.load(std::memory_order_relaxed);
    while (now > seen && !peak.compare_exchange_weak(seen, now, std::memory_order_relaxed)) {}
  }
  void subtract(std::int64_t bytes) { current.fetch_sub(bytes, std::memory_order_relaxed); }
};

class Pool {
 public:
  Block* take(int size_class) {
    const std::lock_guard lock(mutex_);
    if (Block* block = free_[size_class]) {
      free_[size_class] = block->next;
      return block;
    }
    Block* block = new_header();
    block->size_class = static_cast<std::uint16_t>(size_class);
    block->capacity = capacity_of(size_class);
    block->data = carve(block->capacity);
    return block;
  }
  void give(Block* block) {
    const std::lock_guard lock(mutex_);
    block->next = free_[block->size_class];
    free_[block->size_class] = block;
  }

  void trim() {
    const std::lock_guard lock(mutex_);
    for (Block* list : free_) trim_list(list);
  }
  static void trim_list(const Block* list) {
    if (!list || list->capacity < kHugePage) return;
    for (; list; list = list->next) {
      const auto begin = (reinterpret_cast<std::uintptr_t>(list->data) + kPage - 1) & ~(kPage - 1);
      const auto end =
          (reinterpret_cast<std::uintptr_t>(list->data) + static_cast<std::uintptr_t>(list->capacity)) & ~(kPage - 1);
      madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
    }
  }

  Counter total, by_category[kMemoryCategories];
  std::atomic<std::int64_t> reserved{0}, system_requests{0};

 private:
  std::byte* carve(std::int64_t bytes) {
    // Large blocks of one class would all start at the same offset within their pages and compete for the same cache
    // sets; each starts a few lines later than the one before.
    const std::int64_t stagger = bytes >= kHugePage / 8 ? (large_blocks_++ % 16) * 17 * kAlignment : 0;
    const std::int64_t need = bytes + stagger;
    if (need > end_ - next_) {
      const std::int64_t size = std::max(kRegion, (need + kHugePage - 1) / kHugePage * kHugePage);
      next_ = map(size);
      end_ = next_ + size;
    }
    std::byte* result = next_ + stagger;
    next_ += need;
    return result;
  }

  std::byte* map(std::int64_t size) {
    const std::size_t length = static_cast<std::size_t>(size + kHugePage);
    void* address = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    TAP_CHECK(address != MAP_FAILED, "memory: the system refused ", size, " bytes; use a smaller model or batch");
    const auto start = (reinterpret_cast<std::uintptr_t>(address) + kHugePage - 1) & ~std::uintptr_t(kHugePage - 1);
    madvise(reinterpret_cast<void*>(start), static_cast<std::size_t>(size), MADV_HUGEPAGE);
    reserved.fetch_add(size, std::memory_order_relaxed);
    system_requests.fetch_add(1, std::memory_order_relaxed);
    return reinterpret_cast<std::byte*>(start);
  }

  Block* new_header() {
    if (used_headers_ == kHeadersPerSlab) {
      headers_.push_back(new Block[kHeadersPerSlab]);
      system_requests.fetch_add(1, std::memory_order_relaxed);
      used_headers_ = 0;
    }
    return &headers_.back()[used_headers_++];
  }

  static constexpr int kHeadersPerSlab = 256;
  std::mutex mutex_;
  Block* free_[kSizeClasses] = {};
  std::byte* next_ = nullptr;
  std::byte* end_ = nullptr;
  std::int64_t large_blocks_ = 0;
  std::vector<Block*> headers_;
  int used_headers_ = kHeadersPerSlab;
};

// Never destroyed: tensors with static lifetime may be freed after everything else.
Pool& pool() {
  static Pool* const instance = new Pool;
  return *instance;
}

// Every program that holds a tensor also holds the check that runs before main.
[[gnu::used]] void (*const start_check)() = &require_instruction_set;

thread_local bool thread_ended = false;  // trivially destructible, so readable after the cache is gone

struct ThreadCache {
  Block* free[kSizeClasses] = {};
  ~ThreadCache() {
    thread_ended = true;
    for (Block*& list : free) {
      while (Block* block = list) {
        list = block->next;
        pool().give(block);
      }
    }
  }
};
thread_local ThreadCache thread_cache;
thread_local MemoryCategory current_category = MemoryCategory::activations;

}  // namespace

std::string_view name_of(MemoryCategory category) {
  constexpr std::string_view kNames[] = {"parameters", "gradients", "optimizer", "activations", "workspace"};
  return kNames[static_cast<int>(category)];
}

MemoryScope::MemoryScope(MemoryCategory category) : outer_(std::exchange(current_category, category)) {}
MemoryScope::~MemoryScope() { current_category = outer_; }

Storage::Storage(std::int64_t bytes, Device device) {
  TAP_CHECK(device == Device::cpu, "memory: this build has no GPU backend; use Device::cpu");
  TAP_CHECK(bytes >= 0 && bytes <= (std::int64_t{1} << 46), "memory: cannot allocate ", bytes, " bytes");
  const int size_class = size_class_of(bytes);
  Block* block = thread_ended ? nullptr : thread_cache.free[size_class];
  if (block) {
    thread_cache.free[size_class] = block->next;
  } else {
    block = pool().take(size_class);
  }
  block->references.store(1, std::memory_order_relaxed);
  block->bytes = bytes;
  block->writer = "";
  block->owner = thread_ended ? nullptr : &thread_cache;
  block->category = current_category;
  block->device = device;
  ASAN_UNPOISON_MEMORY_REGION(block->data, bytes);
  pool().total.add(block->capacity);
  pool().by_category[static_cast<int>(current_category)].add(block->capacity);
  block_ = block;
}

void Storage::release(Block* block) noexcept {
  pool().total.subtract(block->capacity);
  pool().by_category[static_cast<int>(block->category)].subtract(block->capacity);
  ASAN_POISON_MEMORY_REGION(block->data, block->capacity);
  if (!thread_ended && block->owner == &thread_cache) {
    block->next = thread_cache.free[block->size_class];
    thread_cache.free[block->size_class] = block;
  } else {
    pool().give(block);
  }
}

MemoryStats memory_stats() {
  Pool& p = pool();
  MemoryStats stats;
  for (int i = 0; i < kMemoryCategories; ++i) {
    stats.current[i] = p.by_category[i].current.load(std::memory_order_relaxed);
    stats.peak[i] = p.by_category[i].peak.load(std::memory_order_relaxed);
  }
  stats.current_total = p.total.current.load(std::memory_order_relaxed);
  stats.peak_total = p.total.peak.load(std::memory_order_relaxed);
  stats.reserved = p.reserved.load(std::memory_order_relaxed);
  stats.system_requests = p.system_requests.load(std::memory_order_relaxed);
  return stats;
}

void trim_memory() {
  for (const Block* list : thread_cache.free) Pool::trim_list(list);
  pool().trim();
}

void reset_peak_memory() {
  Pool& p = pool();
  p.total.peak.store(p.total.current.load());
  for (Counter& c : p.by_category) c.peak.store(c.current.load());
}

}  // namespace tapestry
