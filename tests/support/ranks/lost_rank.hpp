// Ranks that take part no longer, as control planes tell of them.
#pragma once

#include <string>
#include <utility>

#include "ddp/core/failure.hpp"

namespace ddp::testing {

/// `how`: "exit code 1".
[[nodiscard]] inline Failure died(int rank, std::string how) {
  return {.code = ErrorCode::peer_lost,
          .manner = Failure::Manner::exited,
          .ranks = {Rank{rank}},
          .detail = std::move(how)};
}

[[nodiscard]] inline Failure killed(int rank, int signal) {
  return {.code = ErrorCode::peer_lost,
          .manner = Failure::Manner::killed,
          .ranks = {Rank{rank}},
          .status = signal};
}

[[nodiscard]] inline Failure left(int rank) {
  return {.code = ErrorCode::peer_lost, .manner = Failure::Manner::left, .ranks = {Rank{rank}}};
}

}  // namespace ddp::testing
