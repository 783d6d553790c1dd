// What the ranks write down while they run: how far they are, how fast, and for whom others wait.
#pragma once

#include <chrono>
#include <cstddef>
#include <span>
#include <string>

#include "ddp/core/deadline.hpp"
#include "launcher/output/console.hpp"
#include "launcher/plan/plan.hpp"
#include "launcher/supervise/flight_recordings.hpp"
#include "launcher/supervise/outcome_recorder.hpp"

namespace ddp::launcher {

/// Looks once a second. What it refers to must outlive it.
class ProgressMonitor {
 public:
  using Clock = Deadline::Clock;
  ProgressMonitor(Plan const& plan, FlightRecordings const& recordings, OutcomeRecorder& outcomes,
                  Console& console)
      : plan_(plan), recordings_(recordings), outcomes_(outcomes), console_(console) {}

  [[nodiscard]] Clock::time_point next() const noexcept { return next_; }
  /// If it is time: notes how far the ranks are. If `all_run` that take part, says which rank others have
  /// long waited for, once for each such wait, and every 10 s, and when others have gone on, how fast the job
  /// is, where steps are measured (Options::statistics).
  void look(bool all_run, Clock::time_point now);
  /// Notes how far a rank was that has ended.
  void look_at(Rank rank) { static_cast<void>(note({rank, recordings_.read(rank)})); }
  /// The ranks were stopped until now.
  void leave_out(Clock::time_point now);

 private:
  bool note(RankFlight const& flight);
  void warn(std::span<RankFlight const> all, Clock::time_point now);
  void tell_pace(Progress const& progress, Clock::time_point now);

  Plan const& plan_;
  FlightRecordings const& recordings_;
  OutcomeRecorder& outcomes_;
  Console& console_;
  Clock::time_point next_{};
  Clock::time_point next_warning_{};
  Clock::time_point next_pace_{};
  std::size_t told_of_ = 0;  ///< ranks, in the last pace
  std::string straggling_;   ///< the wait that was warned of last
};

}  // namespace ddp::launcher
