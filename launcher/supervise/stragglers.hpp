// The warning of a rank that others wait for.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "ddp/core/deadline.hpp"
#include "launcher/output/console.hpp"
#include "launcher/supervise/flight_recordings.hpp"

namespace ddp::launcher {

/// Looks once a second at what the ranks have written down. `recordings` must outlive it.
class Stragglers {
 public:
  using Clock = Deadline::Clock;

  explicit Stragglers(FlightRecordings const& recordings) : recordings_(recordings) {}

  /// When to look for stragglers next; nullopt for a single rank, for which nobody waits.
  [[nodiscard]] std::optional<Clock::time_point> next_look() const;
  /// If it is time: says which rank others have long waited for, once for each such wait. Returns what the
  /// first rank has said of its progress; nullopt if that is not known, and if it is not time.
  std::optional<Progress> warn(Console& console, Clock::time_point now);
  /// The ranks were stopped for this long, until now.
  void leave_out(Clock::duration stopped, Clock::time_point now);

 private:
  FlightRecordings const& recordings_;
  Clock::time_point next_look_{};
  std::string straggling_;  ///< the wait that was warned of last
};

}  // namespace ddp::launcher
