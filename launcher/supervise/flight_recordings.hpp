// The ranks' flight recorders: a look at those that others wait for, and what they tell after a failure.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "ddp/core/deadline.hpp"
#include "launcher/output/console.hpp"
#include "launcher/output/log_directory.hpp"
#include "launcher/report/flight_log.hpp"
#include "launcher/report/report.hpp"

namespace ddp::launcher {

/// By rank, including this host's ranks under an mpirun; ranks of other hosts do not find the memory.
class FlightRecordings {
 public:
  using Clock = Deadline::Clock;

  explicit FlightRecordings(int ranks) : memory_(static_cast<std::size_t>(ranks)) {}

  /// For DDP_FLIGHT; empty if there is none.
  [[nodiscard]] std::string path(Rank rank) const { return memory_[rank.index()].path(); }
  /// Where the ranks behind an mpirun find them: see flight_link().
  void link_into(std::string const& directory);

  /// When to look for stragglers next; nullopt for a single rank, for which nobody waits.
  [[nodiscard]] std::optional<Clock::time_point> next_look() const;
  /// If it is time: says which rank others have long waited for, once for each such wait. Returns what the
  /// first rank has said of its progress; nullopt if that is not known, and if it is not time.
  std::optional<Progress> warn_of_stragglers(Console& console, Clock::time_point now);
  /// The ranks were stopped for this long, until now.
  void leave_out(Clock::duration stopped, Clock::time_point now);

  /// After a failure: what the ranks called last goes into the report, and into files where there are `logs`.
  void add_to(JobOutcome& job, bool under_mpirun, LogDirectory const& logs, Console& console) const;

 private:
  [[nodiscard]] std::vector<RankFlight> read() const;

  std::vector<FlightMemory> memory_;
  Clock::time_point next_look_{};
  std::string straggling_;  ///< the wait that was warned of last
};

}  // namespace ddp::launcher
