// Runs a job: starts its ranks, serves and watches them, ends them, and says what happened.
#pragma once

#include <array>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/file_descriptor.hpp"
#include "ddp/bootstrap/control_server.hpp"
#include "ddp/core/deadline.hpp"
#include "launcher/options/options.hpp"
#include "launcher/output/console.hpp"
#include "launcher/output/rank_stream.hpp"
#include "launcher/plan/plan.hpp"
#include "launcher/process/control_directory.hpp"
#include "launcher/process/guard.hpp"
#include "launcher/process/spawn.hpp"
#include "launcher/report/flight_log.hpp"
#include "launcher/report/report.hpp"
#include "launcher/supervise/job_files.hpp"

namespace ddp::launcher {

/// One generation of a job on this host. Everything happens in run_ranks(), in one thread, which sleeps in
/// epoll_wait. The signals of watched_signals() must be blocked before it is made.
class Supervisor {
 public:
  /// Makes the control socket and the guard; throws ExitError or Error where that fails.
  Supervisor(Plan const& plan, Options const& options, InheritedState const& inherited, Console& console,
             JobFiles& files);
  /// Kills and reaps what is left of the ranks.
  ~Supervisor();
  Supervisor(Supervisor const&) = delete;
  Supervisor& operator=(Supervisor const&) = delete;

  /// Starts the ranks and waits until all have ended and are cleaned up. Called once.
  JobOutcome const& run_ranks();
  /// Prints the report, with `last_words` as its last line if there are any, and waits until the console's
  /// readers have all. Returns ddp-launch's exit code.
  int conclude(std::string const& last_words);

 private:
  using Clock = Deadline::Clock;
  enum class Source : std::uint32_t {
    control,
    signals,
    exec_failures,
    rank_end,
    out,
    err,
    console_out,
    console_err
  };
  struct Running {
    Child child;
    std::unique_ptr<RankStream> out;
    std::unique_ptr<RankStream> err;
  };

  void start_ranks();
  void start_rank(PlannedRank const& planned, int null_fd, int failure_fd, std::string const& master_port);
  [[nodiscard]] LogFile open_log(std::optional<Rank> of, OutputStream stream, bool append);
  [[nodiscard]] std::unique_ptr<RankStream> stream_of(Rank rank, OutputStream stream, FileDescriptor pipe);
  void watch(int operation, int fd, Source source, std::size_t index, std::uint32_t events);
  void wait_and_dispatch();
  [[nodiscard]] int time_to_next_deadline() const;

  void handle(Source source, std::size_t index);
  void handle_control();
  void handle_signals();
  void stop_hearing_children();
  void handle_exec_failures();
  void forward_output(Source source, std::size_t index);
  void update_flow();

  void note_end(std::size_t index);
  void note_failure(RankOutcome const& outcome);
  void note_failure_under_mpirun();
  void find_culprit(RankOutcome& mpirun, std::optional<Rank> named) const;
  void read_error_file(RankOutcome& outcome);
  void end_leftovers(pid_t session);
  void reap_adopted();
  void renew_guard();

  void pass_on(int signal) const;
  void forward_signal(int signal);
  void stop_and_go_on();
  void note_stopped_ranks();
  void apply_deadlines();
  void kill_ranks();
  [[nodiscard]] std::vector<RankFlight> flights() const;
  [[nodiscard]] bool looks_for_stragglers() const;
  void warn_of_stragglers();
  void read_flights();
  [[nodiscard]] RankOutcome* outcome_of(Rank rank);
  void clean_up();
  [[nodiscard]] std::size_t still_running() const;

  Plan const& plan_;
  Options const& options_;
  InheritedState inherited_;
  Console& console_;
  JobFiles& files_;

  std::unique_ptr<Guard> guard_;  ///< goes last
  ControlDirectory directory_;
  std::unique_ptr<ControlServer> server_;
  FileDescriptor epoll_;
  FileDescriptor signals_;
  FileDescriptor exec_failures_;

  std::vector<Running> ranks_;
  std::vector<FlightMemory> flights_;  // by rank, also of those behind an mpirun
  std::set<pid_t> own_children_;       ///< the guard and the running ranks; other children are adopted
  OomLooks oom_looks_;
  JobOutcome job_;  ///< one entry per started rank, in step with ranks_
  bool reading_ = true;
  std::array<bool, 2> console_waits_{};  ///< the console's streams are watched for room
  bool killed_ = false;
  bool failure_seen_ = false;
  bool mpirun_told_ = false;                     ///< that a rank has failed
  std::optional<Clock::time_point> kill_at_;     ///< when the ranks' grace ends
  std::optional<Clock::time_point> give_up_at_;  ///< when not even SIGKILL helped
  std::optional<Clock::time_point> last_interrupt_;
  Clock::time_point next_look_{};  ///< for stragglers
  std::string straggling_;         ///< the wait that was warned of last
};

/// Signals that the supervisor reads: SIGCHLD, and of SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2
/// those that the launcher was not told to ignore (nohup).
[[nodiscard]] sigset_t watched_signals();

}  // namespace ddp::launcher
