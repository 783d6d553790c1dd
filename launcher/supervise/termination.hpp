// How a job is brought to its end: signals that are passed on, grace periods, SIGKILL.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>

#include "ddp/core/deadline.hpp"
#include "launcher/options/options.hpp"
#include "launcher/output/console.hpp"
#include "launcher/report/outcome.hpp"

namespace ddp::launcher {

/// Decides when the ranks get which signal, and says so. The end begins with the first failure or the first
/// signal; from then on the ranks have the grace of the options, then SIGKILL, then a last wait.
class Termination {
 public:
  using Clock = Deadline::Clock;
  /// Sends a signal to all that run.
  using Send = std::function<void(int signal)>;

  Termination(Options const& options, bool under_mpirun, Console& console, Send send);

  /// This process got a signal that is for the job.
  void pass_on(int signal, Clock::time_point now);
  /// `outcome` is a failure in a job of `size`.
  void rank_failed(RankOutcome const& outcome, std::size_t size, std::size_t still_running,
                   Clock::time_point now);
  /// The program cannot be started: kills the other ranks.
  void exec_failed(Clock::time_point now);
  /// Some ranks have ended, and all others have been stopped for as long as a rank may wait.
  void stands_still(std::span<RankOutcome const> ranks, Deadline::Duration waited, Clock::time_point now);
  /// All ranks behind an mpirun have ended. It waits for every host, even for one that it can no longer
  /// reach.
  void only_mpirun_is_left(Clock::time_point now);
  /// Kills the ranks whose grace has ended; mpirun is first told to do so on all hosts.
  void enforce(std::span<RankOutcome const> ranks, Clock::time_point now);
  /// The ranks and this process were stopped for this long: the grace is extended by it.
  void leave_out(Clock::duration stopped);

  /// When enforce() or given_up() may have something to do; nullopt: the ranks may take as long as they like.
  [[nodiscard]] std::optional<Clock::time_point> deadline() const noexcept { return deadline_; }
  /// Whether ranks still run although SIGKILL was sent and the last wait is over.
  [[nodiscard]] bool given_up(Clock::time_point now) const { return killed_ && now >= *deadline_; }

  [[nodiscard]] bool begun() const noexcept { return failure_seen_ || signal_ != 0; }
  [[nodiscard]] bool failure_seen() const noexcept { return failure_seen_; }
  [[nodiscard]] bool killed() const noexcept { return killed_; }
  /// The first that was passed on, or 0.
  [[nodiscard]] int signal() const noexcept { return signal_; }
  [[nodiscard]] bool failed_before_signal() const noexcept { return failed_before_signal_; }

 private:
  void allow(Deadline::Duration grace, Clock::time_point now);
  void kill(Clock::time_point now);

  Options const& options_;
  bool under_mpirun_;
  Console& console_;
  Send send_;

  bool failure_seen_ = false;
  bool mpirun_ends_ranks_ = false;  ///< it was told to
  int signal_ = 0;
  bool failed_before_signal_ = false;
  std::optional<Clock::time_point> last_interrupt_;
  bool killed_ = false;
  std::optional<Clock::time_point> deadline_;  ///< of the grace; once killed, of the wait for their end
};

}  // namespace ddp::launcher
