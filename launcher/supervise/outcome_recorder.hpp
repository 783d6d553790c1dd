// What is known of each rank, from what it says and how it ends: for the report, and for --events.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <map>
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

/// Ranks are in the order of their start; an mpirun stands for all of its ranks.
class OutcomeRecorder {
 public:
  using Clock = RankOutcome::Clock;

  /// `directory`: where ranks write their error files.
  OutcomeRecorder(Plan const& plan, std::string directory, EventLog& events);

  [[nodiscard]] std::vector<RankOutcome> const& ranks() const noexcept { return ranks_; }

  void started(PlannedRank const& rank, pid_t pid);
  void exec_failed(ExecFailure const& failure);
  /// The rank said something over the control socket.
  void take(ControlServer::Event const& event, Clock::time_point now);
  /// It ended, and all that it said has been taken. `killed`: by this process, because of something else.
  RankOutcome const& ended(std::size_t index, ProcessEnd const& end, bool killed, Clock::time_point now);
  /// The rank's end is a failure: looks for what may have caused it.
  void failed(std::size_t index, Clock::time_point now);
  /// Some ranks have ended, and all others are stopped: no deadline of a rank runs any more.
  [[nodiscard]] bool stands_still() const;
  /// At the first sign of a failure: notes stopped ranks. They do not fail, but others may wait for them.
  void note_stopped();
  /// mpirun told of a failed rank, did not end, and was killed.
  void hung_after_failure(std::size_t index) { ranks_[index].hung_after_failure = true; }
  /// Notes why its log files are incomplete.
  void note_files(std::size_t index, RankStream const& out, RankStream const& err);
  /// Called often: see OomLooks.
  void look_for_oom_kills(Clock::time_point now) { oom_looks_.look(now); }
  /// All has ended: keeps the last lines of its stderr, and under mpirun which rank failed first.
  void last_words(std::size_t index, RankStream const& err);

 private:
  void take_behind_mpirun(ControlServer::Event const& event);
  void find_culprit(RankOutcome& mpirun, RankStream const& err) const;

  Plan const& plan_;
  std::string directory_;
  EventLog& events_;
  std::vector<RankOutcome> ranks_;
  std::map<Rank, ReportedError> errors_;  ///< of ranks behind an mpirun
  OomLooks oom_looks_;
};

}  // namespace ddp::launcher
