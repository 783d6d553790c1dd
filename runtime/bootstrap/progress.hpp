// What a rank tells ddp-launch while it trains.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "ddp/core/ids.hpp"
#include "observe/flight_recorder.hpp"

namespace ddp {

/// How far a rank is.
struct Progress {
  /// Of steps since the last time, by their statistics; all in milliseconds, means over these steps.
  struct Pace {
    double step_ms = 0;
    Rank slowest;        ///< of the whole job
    double late_ms = 0;  ///< how long others waited for it
  };
  std::uint64_t steps = 0;  ///< synchronised ones
  std::optional<Pace> pace{};
};

inline constexpr std::size_t kLongestProgress = FlightRecorder::kMaxProgress;

/// "step 120", or "step 120, 13.1 ms, slowest rank 3 by 1.2 ms". Written into `room`, since a step allocates
/// nothing.
[[nodiscard]] std::string_view write_progress(Progress const& progress,
                                              std::span<char, kLongestProgress> room) noexcept;
/// nullopt for words that do not begin with a step; what follows it may be something else.
[[nodiscard]] std::optional<Progress> read_progress(std::string_view words) noexcept;

}  // namespace ddp
