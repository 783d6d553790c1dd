// Runs a job: the event loop that ties its processes, what they say and write, and its end together.
#pragma once

#include <sys/resource.h>

#include <cstddef>
#include <optional>

#include "bootstrap/server/control_server.hpp"
#include "bootstrap/server/rendezvous.hpp"
#include "core/system/file_descriptor.hpp"
#include "ddp/core/deadline.hpp"
#include "launcher/options/options.hpp"
#include "launcher/output/console.hpp"
#include "launcher/output/event_log.hpp"
#include "launcher/output/log_directory.hpp"
#include "launcher/plan/plan.hpp"
#include "launcher/process/job_control.hpp"
#include "launcher/report/report.hpp"
#include "launcher/supervise/event_loop.hpp"
#include "launcher/supervise/flight_recordings.hpp"
#include "launcher/supervise/outcome_recorder.hpp"
#include "launcher/supervise/output_forwarder.hpp"
#include "launcher/supervise/progress_monitor.hpp"
#include "launcher/supervise/rank_processes.hpp"
#include "launcher/supervise/rank_starter.hpp"
#include "launcher/supervise/replacements.hpp"
#include "launcher/supervise/termination.hpp"

namespace ddp::launcher {

/// The files that a job writes, for as long as it runs.
struct JobFiles {
  LogDirectory logs;  ///< none: no files of the ranks
  EventLog events;
};

/// One generation of a job on this host. Everything happens in run(), in one thread. The signals of
/// watched_signals() must be blocked before it is made.
class Supervisor {
 public:
  /// Makes the control socket and the guard; throws ExitError or Error where that fails. `open_files`: the
  /// ranks' limit.
  Supervisor(Plan const& plan, Options const& options, rlimit const& open_files, Console& console,
             JobFiles& files);
  /// Kills and reaps what is left of the ranks.
  ~Supervisor() { end_ranks(); }
  Supervisor(Supervisor const&) = delete;
  Supervisor& operator=(Supervisor const&) = delete;

  /// Starts the ranks and waits until all have ended. Called once.
  JobOutcome run();

 private:
  using Clock = Deadline::Clock;

  void start_ranks();
  [[nodiscard]] std::size_t number_of_ranks() const { return static_cast<std::size_t>(plan_.world_size()); }
  [[nodiscard]] bool all_is_well() const;
  [[nodiscard]] Clock::time_point next_deadline() const;
  void take_signals();
  void pass_on_window();
  void stop_and_go_on();
  void take_exec_failures();
  void hear_ranks();
  void note_end(std::size_t index);
  void note_end_behind_mpirun(ControlServer::Event const& event);
  void judge_end(std::size_t place, std::size_t still_running);
  [[nodiscard]] bool goes_on_without(RankOutcome const& lost, std::size_t still_running);
  void end_late(Rank rank);
  void say_who_joined(Membership const& membership);
  void watch_end(std::size_t index);
  void start_due_replacements();
  void end_newcomers();
  void tell_ranks_of(RankOutcome const& ended);
  [[nodiscard]] bool guards_may_tell() const;
  [[nodiscard]] bool may_stand_still() const;
  void look_for_standstill(Clock::time_point now);
  void end_ranks();

  Plan const& plan_;
  Options const& options_;
  rlimit const& open_files_;
  Console& console_;
  JobFiles& files_;

  HeldTerminalSignals const held_;  // first, so that Ctrl-Z leaves no directory and no guard behind
  RankProcesses processes_;
  Invitation invitation_;  // of ranks behind an mpirun
  ControlServer server_;
  EventLoop loop_;
  FileDescriptor signals_;
  FileDescriptor exec_failures_;
  OutcomeRecorder outcomes_;
  Termination termination_;
  FlightRecordings flights_;
  ProgressMonitor progress_;
  OutputForwarder output_;
  std::optional<RankStarter> starter_;
  Replacements replacements_;
  std::optional<Clock::time_point> stands_since_;
  Clock::time_point next_look_at_stopped_{};
  std::optional<Clock::time_point> mpirun_ended_;
};

}  // namespace ddp::launcher
