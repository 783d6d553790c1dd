// What happens to a job, for machines: a JSON object a line (--events).
#pragma once

#include <chrono>
#include <string>

#include "core/system/file_descriptor.hpp"
#include "ddp/bootstrap/control_plane.hpp"
#include "launcher/output/console.hpp"
#include "launcher/plan/plan.hpp"
#include "launcher/report/report.hpp"

namespace ddp::launcher {

/// Each line is one write at the end of the file: several jobs may share it. docs/launcher.md lists events
/// and fields. If the file cannot be written any more, the console says so once, and the job goes on.
class EventLog {
 public:
  EventLog() = default;  ///< none: every event is dropped
  /// Opens or makes the file. Throws ExitError(73) with the reason of open_own_file().
  EventLog(std::string const& path, std::string job_id, Console& console);

  void start(Plan const& plan);
  /// The rank's process was started.
  void rank_up(RankOutcome const& rank);
  /// It has joined the control plane's group.
  void rank_joined(RankOutcome const& rank);
  /// It reported its progress; see RankOutcome::progress.
  void step(RankOutcome const& rank);
  void failure(RankOutcome const& rank, std::size_t size);
  /// The ranks that live go on as this membership.
  void rebuild(Membership const& membership);
  /// `generation` is the next one, `failed` the outcome of the one before.
  void restart(JobOutcome const& failed, int generation, std::chrono::milliseconds delay);
  void end(JobOutcome const& job, std::string const& last_words);
  /// The job ended without running ranks: between two generations, or because none could be started.
  void end(int exit_code, std::string const& why);

 private:
  struct Fields;
  void write(char const* event, Fields const& fields);

  std::string path_;
  std::string job_id_;
  int generation_ = 0;
  Console* console_ = nullptr;
  FileDescriptor file_;
  std::chrono::steady_clock::time_point began_{};
};

}  // namespace ddp::launcher
