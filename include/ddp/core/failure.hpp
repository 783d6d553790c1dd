// A failure of a group of ranks as a value, which is thrown, sent over the wire, and reported.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ddp/core/error.hpp"
#include "ddp/core/export.hpp"
#include "ddp/core/ids.hpp"

namespace DDP_EXPORT ddp {

/// One failure, with all that is known of it. Ranks are those of the job. A program asks a CommError for it.
struct Failure {
  /// What the first of `ranks` did, or did not do.
  enum class Manner {
    killed,   ///< its process was ended by the signal `status`
    exited,   ///< its process ended, with the exit code `status`, or as `detail` says
    stopped,  ///< it did not come, since its process is stopped
    left,     ///< it left the group in order
    silent,   ///< it did not come
    threw,    ///< it had an error of its own, or gave up
    refused,  ///< what it asked for is not allowed
    differs   ///< it did something else than others
  };
  ErrorCode code = ErrorCode::invalid_state;  ///< as this rank sees it
  Manner manner = Manner::threw;              ///< what happened
  std::vector<Rank> ranks{};  ///< whom it is about, the one where it began first; empty: not known
  std::string host{};         ///< of that rank; empty for this one, or if it is not known
  int status = 0;             ///< signal or exit code; 0: not known
  std::string operation{};    ///< in which it was noticed: "operation 4, all_reduce (sum) of f32[256]"
  std::optional<Rank> by{};   ///< who was in that operation
  std::chrono::milliseconds waited{0};  ///< for how long, before `by` gave up
  std::string detail{};                 ///< what only a sentence can say, and what helps
  std::optional<Rank> ended_by{};       ///< who ended the group for this; unset where this rank did
  friend bool operator==(Failure const&, Failure const&) = default;  ///< Field by field.
};

/// The manner's name as it stands in DDP_ERROR_FILE and events: "killed".
[[nodiscard]] std::string_view to_string(Failure::Manner manner) noexcept;

/// The failure as a sentence: "rank 2 is gone (killed by signal 9 (SIGKILL)) while rank 0 was in operation 4,
/// barrier". `by`, if not empty, is what to call the rank Failure::by.
[[nodiscard]] std::string to_string(Failure const& failure, std::string_view by = {});

}  // namespace ddp
