#include "core/io/hash.h"

#include <fmt/format.h>
#include <xxhash.h>

#include "core/error.h"

namespace tapestry {

struct Hash128::State {
  XXH3_state_t* xxh = XXH3_createState();
  State() {
    TAP_CHECK(xxh, "hash: out of memory");
    XXH3_128bits_reset(xxh);
  }
  ~State() { XXH3_freeState(xxh); }
};

Hash128::Hash128() : state_(std::make_unique<State>()) {}
Hash128::~Hash128() = default;

void Hash128::add(std::span<const std::byte> bytes) { XXH3_128bits_update(state_->xxh, bytes.data(), bytes.size()); }

void Hash128::add(std::string_view text) {
  add(static_cast<std::int64_t>(text.size()));
  XXH3_128bits_update(state_->xxh, text.data(), text.size());
}

void Hash128::add(std::int64_t number) { XXH3_128bits_update(state_->xxh, &number, sizeof number); }

std::string Hash128::hex() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(state_->xxh);
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

std::string hash_hex(std::span<const std::byte> bytes) {
  Hash128 hash;
  hash.add(bytes);
  return hash.hex();
}

}  // namespace tapestry
