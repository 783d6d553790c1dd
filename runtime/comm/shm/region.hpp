// The memory that ranks of one host share: a plain layout over zeroed memory.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "comm/fingerprint.hpp"
#include "comm/group/group_failure.hpp"
#include "core/round_up.hpp"
#include "ddp/core/ids.hpp"

namespace ddp::shm {

/// One rank's staging for one stage. A communicator takes two of these for each rank, and no other memory of
/// this size.
inline constexpr std::size_t kStagingBytes = (256_KiB).value;
/// Up to so many bytes of each rank, one barrier and copies through staging cost less than a second barrier.
inline constexpr std::size_t kOneShotBytes = (2_KiB).value;
static_assert(kOneShotBytes <= kStagingBytes);
inline constexpr std::size_t kCacheLine = 64;

/// A 32-bit counter that ranks sleep on.
struct alignas(kCacheLine) Word {
  std::atomic<std::uint32_t> value;
  std::atomic<std::uint32_t> sleepers;
};

/// Where a tensor lies, in terms that every rank understands.
struct Location {
  static constexpr std::int64_t kPrivate = 0;  ///< in memory of this rank alone
  static constexpr std::int64_t kProcess = 1;  ///< an address: ranks are threads of one process
  std::int64_t allocation = kPrivate;          ///< larger: a allocation made by allocate()
  std::uint64_t offset = 0;                    ///< of the allocation; or the address
};

/// A rank's announcement of its operation: other ranks compare it, and find the rank's memory by it.
struct Announcement {
  Fingerprint said;
  double factor = 1.0;
  Location in;
  Location out;
};

/// How many ranks, as threads, may be using each other's memory now: a rank that fails waits for them before
/// its caller frees what they use. Processes need no count, since mappings stay.
struct alignas(kCacheLine) Visitors {
  std::atomic<std::uint32_t> count;
};

struct alignas(kCacheLine) Slot {
  Word arrived;                   ///< the last stage that this rank reached
  Announcement announcements[2];  ///< by parity of the stage
  std::atomic<std::int32_t> process;
};

static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

/// Addresses inside a region. Owns nothing.
class Region {
 public:
  Region(std::byte* base, int size) noexcept : base_(base), size_(static_cast<std::size_t>(size)) {}

  [[nodiscard]] static std::size_t bytes(int size) noexcept { return Region(nullptr, size).end(); }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] GroupFailure& failure() const noexcept { return *reinterpret_cast<GroupFailure*>(base_); }
  [[nodiscard]] Visitors& visitors() const noexcept {
    return *reinterpret_cast<Visitors*>(base_ + up(sizeof(GroupFailure)));
  }
  [[nodiscard]] Slot& slot(std::size_t rank) const noexcept {
    return reinterpret_cast<Slot*>(base_ + slots())[rank];
  }
  /// kStagingBytes of `rank`, by parity of the stage.
  [[nodiscard]] std::byte* staging(std::size_t rank, std::uint32_t stage) const noexcept {
    return base_ + stagings() + (rank * 2 + stage % 2) * kStagingBytes;
  }

 private:
  static constexpr std::size_t kPage = 4096;
  static constexpr std::size_t up(std::size_t bytes) noexcept { return round_up(bytes, kPage); }
  [[nodiscard]] std::size_t slots() const noexcept { return up(sizeof(GroupFailure)) + up(sizeof(Visitors)); }
  [[nodiscard]] std::size_t stagings() const noexcept { return up(slots() + size_ * sizeof(Slot)); }
  [[nodiscard]] std::size_t end() const noexcept { return stagings() + size_ * 2 * kStagingBytes; }

  std::byte* base_;
  std::size_t size_;
};

}  // namespace ddp::shm
