// How far a step is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "ddp/core/failure.hpp"

namespace ddp {

/// How far a synchronised step is.
enum class StepState : std::uint8_t {
  idle,       ///< none has begun: between steps, and in micro-steps
  open,       ///< its head is sent, and buckets as they become complete
  tail_sent,  ///< all is sent
  failed,     ///< by an error, for ever
};

/// Whose step it is.
enum class StepKind : std::uint8_t {
  own,       ///< of this rank's data
  joined,    ///< of other ranks' data: this one has none left (R11)
  recorded,  ///< into a graph: nothing that is enqueued runs (R24)
};

/// The step that runs, or comes next.
struct Step {
  std::uint64_t number = 0;  ///< synchronised steps that are done
  StepState state = StepState::idle;
  StepKind kind = StepKind::own;
  bool awaits_update = false;    ///< nothing says yet that the program has made use of the last one
  std::size_t launched = 0;      ///< buckets that are sent
  bool left_out_before = false;  ///< some rank's last step has left a parameter out
  std::string failure;           ///< why it failed
  std::optional<Failure> lost;   ///< the failure, where it is one of the group

  /// Between begin and end.
  [[nodiscard]] bool has_begun() const noexcept {
    return state == StepState::open || state == StepState::tail_sent;
  }
  [[nodiscard]] bool is_recorded() const noexcept { return kind == StepKind::recorded; }
};

}  // namespace ddp
