// How far a rank is, as it tells its watcher.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "ddp/core/export.hpp"
#include "ddp/core/ids.hpp"

namespace DDP_EXPORT ddp {

/// What a rank tells ddp-launch while it trains.
struct Progress {
  /// Means over the steps since the last report, from their statistics, in milliseconds.
  struct Pace {
    double step_ms = 0;                                          ///< of one step
    Rank slowest{};                                              ///< of the whole job
    double late_ms = 0;                                          ///< how long others waited for it
    friend bool operator==(Pace const&, Pace const&) = default;  ///< Number by number.
  };
  std::uint64_t steps = 0;                                             ///< synchronised ones
  std::optional<Pace> pace{};                                          ///< where it is measured
  friend bool operator==(Progress const&, Progress const&) = default;  ///< Number by number.
};

/// "step 120", or "step 120, 13.1 ms, slowest rank 3 by 1.2 ms".
[[nodiscard]] std::string to_string(Progress const& progress);

}  // namespace ddp
