// Why a group failed, told to all its ranks through memory that they share.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "comm/group/members.hpp"
#include "ddp/bootstrap/control_plane.hpp"
#include "ddp/core/error.hpp"
#include "ddp/core/ids.hpp"

namespace ddp {

/// Written once, by whichever rank is first. Zeroed memory says that nothing failed.
class GroupFailure {
 public:
  /// Returns whether this call was the first. `rank`: of the world, for messages. Any thread.
  bool set(ErrorCode code, Rank rank, std::string_view reason) noexcept;
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
  ErrorCode code_;
  std::int32_t rank_;
  char reason_[1024];
};

/// The first lost member that ends a wait: one that died, since no operation can complete without it, or one
/// that left in order, if `awaits(member)` says that the wait is for it.
template <class Awaits>
[[nodiscard]] std::optional<LostRank> find_lost(MemberGroup const& group, Awaits const& awaits) {
  if (!group.control) return std::nullopt;
  for (LostRank& lost : group.control->lost()) {
    auto const found = std::ranges::find(group.world_ranks, lost.rank);
    if (found == group.world_ranks.end()) continue;
    auto const member = static_cast<std::size_t>(found - group.world_ranks.begin());
    if (lost.manner == LostRank::Manner::died || awaits(member)) return std::move(lost);
  }
  return std::nullopt;
}

/// "rank 0 waited 0.3 s in operation 4, barrier for ranks 1, 2; …, or raise DDP_TIMEOUT"; of a missing rank
/// that waits in the control plane, as behind its loop over the data, in what, and what helps. `me`: who
/// waited.
[[nodiscard]] std::string describe_timeout(Rank me, MemberGroup const& group, std::string_view activity,
                                           std::span<Rank const> missing);
/// "rank 2 is gone (killed by signal 9 (SIGKILL)) while rank 0 was in operation 4, barrier"; what helps, if
/// it left.
[[nodiscard]] std::string describe_loss(LostRank const& lost, Rank me, std::string_view activity);

}  // namespace ddp
