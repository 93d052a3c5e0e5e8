// Storage: reference-counted, versioned memory from a caching pool over huge-page regions.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <utility>

#include "core/device.h"

namespace tapestry {

// What a block is used for; the pool counts bytes by it.
enum class MemoryCategory : std::uint8_t { parameters, gradients, optimizer, activations, workspace };
inline constexpr int kMemoryCategories = 5;
std::string_view name_of(MemoryCategory category);

// New storage of this thread is counted under `category` while the scope lives (activations outside of any).
class MemoryScope {
 public:
  explicit MemoryScope(MemoryCategory category);
  ~MemoryScope();
  MemoryScope(const MemoryScope&) = delete;
  MemoryScope& operator=(const MemoryScope&) = delete;

 private:
  MemoryCategory outer_;
};

struct MemoryStats {
  std::array<std::int64_t, kMemoryCategories> current{};  // bytes handed out now
  std::array<std::int64_t, kMemoryCategories> peak{};     // highest value of each since reset_peak_memory()
  std::int64_t current_total = 0, peak_total = 0;
  std::int64_t reserved = 0;         // bytes taken from the system
  std::int64_t system_requests = 0;  // how often the pool asked the system for memory; constant in a steady state
};
MemoryStats memory_stats();
void reset_peak_memory();
// Gives the pages of large free blocks back to the system. Each costs a page fault when it is used again, so this is
// for after something big and singular, not for a training loop.
void trim_memory();

// Names the writer that a "changed after it was saved" error reports, such as "AdamW.step", while the scope lives.
class WriterScope {
 public:
  explicit WriterScope(const char* name) : outer_(std::exchange(current_, name)) {}
  ~WriterScope() { current_ = outer_; }
  WriterScope(const WriterScope&) = delete;
  WriterScope& operator=(const WriterScope&) = delete;
  static const char* current() { return current_; }

 private:
  const char* outer_;
  static inline thread_local const char* current_ = "an in-place write";
};

// A counted handle of one block. Copies share the block; the last one returns it to the pool (any thread may).
class Storage {
 public:
  Storage() = default;
  explicit Storage(std::int64_t bytes, Device device = Device::cpu);  // uninitialised, 64-byte aligned
  Storage(const Storage& other) noexcept : block_(other.block_) {
    if (block_) block_->references.fetch_add(1, std::memory_order_relaxed);
  }
  Storage(Storage&& other) noexcept : block_(std::exchange(other.block_, nullptr)) {}
  Storage& operator=(Storage other) noexcept {
    std::swap(block_, other.block_);
    return *this;
  }
  ~Storage() {
    if (block_ && block_->references.fetch_sub(1, std::memory_order_acq_rel) == 1) release(block_);
  }

  explicit operator bool() const { return block_ != nullptr; }
  friend bool operator==(const Storage& a, const Storage& b) { return a.block_ == b.block_; }

  std::byte* data() const { return block_->data; }
  std::int64_t bytes() const { return block_->bytes; }
  Device device() const { return block_->device; }
  bool shared() const { return block_->references.load(std::memory_order_acquire) > 1; }

  // Counts writes, also over successive owners of the memory; a value saved for backward and a converted copy remember
  // it to notice a later change.
  std::uint32_t version() const { return block_->version.load(std::memory_order_relaxed); }
  const char* last_writer() const { return block_->writer; }
  void raise_version() const {
    block_->writer = WriterScope::current();
    block_->version.fetch_add(1, std::memory_order_relaxed);
  }

  struct Block {
    std::atomic<std::int64_t> references{1};
    std::atomic<std::uint32_t> version{0};
    std::byte* data = nullptr;
    std::int64_t bytes = 0;     // asked for
    std::int64_t capacity = 0;  // of the size class
    const char* writer = "";
    Block* next = nullptr;  // in a free list
    void* owner = nullptr;  // the thread cache that handed it out
    std::uint16_t size_class = 0;
    MemoryCategory category = MemoryCategory::activations;
    Device device = Device::cpu;
  };

 private:
  static void release(Block* block) noexcept;
  Block* block_ = nullptr;
};

}  // namespace tapestry
