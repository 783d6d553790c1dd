// Which failures are of a lost rank.
#pragma once

#include "ddp/core/failure.hpp"

namespace ddp {

/// Whether going on without somebody may help. Ranks that differ would differ again, and a rank that counts
/// as lost itself is refused.
[[nodiscard]] inline bool is_of_a_lost_rank(Failure const& failure) noexcept {
  if (failure.manner == Failure::Manner::refused) return false;
  return failure.code == ErrorCode::peer_lost || failure.code == ErrorCode::timeout ||
         failure.code == ErrorCode::aborted;
}

}  // namespace ddp
