// What is known of each rank, from what it says and how it ends: for the report, and for --events.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "bootstrap/server/control_server.hpp"
#include "launcher/output/event_log.hpp"
#include "launcher/output/rank_stream.hpp"
#include "launcher/plan/plan.hpp"
#include "launcher/process/spawn.hpp"
#include "launcher/report/oom_kills.hpp"
#include "launcher/report/outcome.hpp"
#include "launcher/supervise/rank_processes.hpp"

namespace ddp::launcher {

/// Ranks are in the order of their numbers; behind them, where there is one, mpirun.
class OutcomeRecorder {
 public:
  using Clock = RankOutcome::Clock;

  /// `directory`: where ranks write their error files.
  OutcomeRecorder(Plan const& plan, std::string directory, EventLog& events);

  [[nodiscard]] std::vector<RankOutcome> const& ranks() const noexcept { return ranks_; }

  void started(PlannedRank const& rank, pid_t pid);
  /// A new process stands for that rank, which was lost. What was known of it goes to lost().
  void replaced(PlannedRank const& rank, pid_t pid);
  /// Those whose place a new process has taken, in the order of their ends.
  [[nodiscard]] std::vector<RankOutcome> const& lost() const noexcept { return lost_; }
  /// The ranks that take part: all, until others have gone on without some.
  [[nodiscard]] std::vector<Rank> const& membership() const noexcept { return membership_; }
  /// When they last went on so.
  [[nodiscard]] std::chrono::system_clock::time_point went_on() const noexcept { return went_on_; }
  /// How many ranks run and take part, and whether they have begun to end.
  [[nodiscard]] std::size_t members() const noexcept;
  [[nodiscard]] bool is_ending() const noexcept;
  /// It is killed, since nobody is left to take it in.
  void not_needed(std::size_t index) { ranks_[index].unneeded = true; }
  /// The place in ranks() of the process that was started as number `process`.
  [[nodiscard]] std::size_t place_of(std::size_t process) const noexcept {
    return plan_.mpi_ranks ? static_cast<std::size_t>(*plan_.mpi_ranks) : process;
  }
  void exec_failed(ExecFailure const& failure);
  /// The rank said something over the control socket.
  void take(ControlServer::Event const& event, Clock::time_point now);
  /// How far the rank is. Returns whether that is news.
  bool note_progress(Rank rank, Progress const& progress);
  /// It ended, and all that it said has been taken. `killed`: by this process, because of something else.
  RankOutcome const& ended(std::size_t index, ProcessEnd const& end, bool killed, Clock::time_point now);
  /// The same of a rank behind an mpirun: its guard has told.
  RankOutcome const& ended(ControlServer::Event const& event, Clock::time_point now);
  /// How many ranks run, as far as is known.
  [[nodiscard]] std::size_t running() const noexcept;
  /// Whether anything was heard of ranks behind an mpirun.
  [[nodiscard]] bool heard_of_ranks() const noexcept;
  /// mpirun has ended, and no rank behind it will be heard of any more. `stopped_by_signal`: one that was
  /// passed on before anything failed.
  void no_more_is_heard(bool stopped_by_signal, Clock::time_point now);
  /// The rank's end is a failure: looks for what may have caused it.
  void failed(std::size_t index, Clock::time_point now);
  /// Some ranks have ended, and all others are stopped: no deadline of a rank runs any more.
  [[nodiscard]] bool stands_still() const;
  /// At the first sign of a failure: notes stopped ranks. They do not fail, but others may wait for them.
  void note_stopped();
  /// Notes why its log files are incomplete.
  void note_files(std::size_t index, RankStream const& out, RankStream const& err);
  /// Called often: see OomLooks.
  void look_for_oom_kills(Clock::time_point now) { oom_looks_.look(now); }
  /// All has ended: keeps the last lines of its stderr.
  void last_words(std::size_t index, RankStream const& err);

 private:
  [[nodiscard]] RankOutcome& add(Rank rank);
  void rebuilt(Membership const& membership);
  /// ranks() without mpirun.
  template <class Recorder>
  [[nodiscard]] static auto only_ranks(Recorder& self) noexcept {
    return std::span(self.ranks_).first(self.place_of(self.ranks_.size()));
  }
  [[nodiscard]] std::string how_rank_stopped(RankOutcome const& outcome) const;

  Plan const& plan_;
  std::string directory_;
  EventLog& events_;
  std::vector<RankOutcome> ranks_;
  std::vector<RankOutcome> lost_;
  std::vector<Rank> membership_;
  std::chrono::system_clock::time_point went_on_{};
  OomLooks oom_looks_;
};

}  // namespace ddp::launcher
