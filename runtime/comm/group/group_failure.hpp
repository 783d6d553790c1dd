// Why a group failed, told to all its ranks through memory that they share.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/group/members.hpp"
#include "ddp/bootstrap/control_plane.hpp"
#include "ddp/core/failure.hpp"
#include "ddp/core/ids.hpp"

namespace ddp {

/// Written once, by whichever rank is first. Zeroed memory says that nothing failed.
class GroupFailure {
 public:
  static constexpr std::size_t kMostBytes = 2040;  ///< of a failure; what is longer is cut
  /// Returns whether this call was the first. `failure` says who ended_by. Any thread.
  bool set(Failure const& failure) noexcept;
  [[nodiscard]] bool is_set() const noexcept { return state_.load(std::memory_order_acquire) == kSet; }
  /// Throws the failure as rank `me` (of the world) sees it. A mismatch is thrown unchanged on every rank,
  /// anything else on the rank where it began. On other ranks it is thrown as a consequence: peer_lost stays,
  /// any other code becomes aborted.
  void throw_if_set(Rank me) const;

 private:
  static constexpr std::uint32_t kNone = 0;
  static constexpr std::uint32_t kWriting = 1;
  static constexpr std::uint32_t kSet = 2;
  std::atomic<std::uint32_t> state_;
  std::uint32_t length_;
  std::array<char, kMostBytes> bytes_;  // as wire::encode_failure() writes it
};

/// The first lost member that ends a wait: one that died, since no operation can complete without it, or one
/// that left in order, if `awaits(member)` says that the wait is for it.
template <class Awaits>
[[nodiscard]] std::optional<Failure> find_lost(MemberGroup const& group, Awaits const& awaits) {
  if (!group.control) return std::nullopt;
  for (Failure& lost : group.control->lost()) {
    auto const found = std::ranges::find(group.world_ranks, lost.ranks.front());
    if (found == group.world_ranks.end()) continue;
    auto const member = static_cast<std::size_t>(found - group.world_ranks.begin());
    if (lost.manner != Failure::Manner::left || awaits(member)) return std::move(lost);
  }
  return std::nullopt;
}

/// The failure of `me`, which waited in `activity` for the members at `places`, which did not come. If one of
/// them waits in the control plane, as after its loop over the data, it says in which call, and what helps.
[[nodiscard]] Failure wait_in_vain(Rank me, MemberGroup const& group, std::string activity,
                                   std::span<std::size_t const> places);
/// What `lost` means for `me` in `activity`. If the lost rank left in order, it says what helps.
[[nodiscard]] Failure loss_of(Failure lost, Rank me, std::string activity);

}  // namespace ddp
