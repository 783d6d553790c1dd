// The start of a job's ranks: their environment, their streams, and whether they became the program.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "core/system/file_descriptor.hpp"
#include "launcher/plan/plan.hpp"
#include "launcher/process/spawn.hpp"
#include "launcher/supervise/rank_processes.hpp"

namespace ddp::launcher {

struct StartedRank {
  Child child;
  FileDescriptor out;  ///< its stdout; does not block
  FileDescriptor err;
};

/// Lives while a job's ranks are started. The caller gives the processes to RankProcesses::add().
class RankStarter {
 public:
  /// `control`: path of the control socket. Throws where descriptors are missing.
  RankStarter(Plan const& plan, rlimit const& open_files, std::string control,
              RankProcesses const& processes);

  /// `flight`: path of the memory for its FlightRecorder. Throws as spawn() does.
  [[nodiscard]] StartedRank start(PlannedRank const& rank, std::string const& flight) const;

  /// Gets an ExecFailure from each rank that did not become the program. Ends when every rank is past its
  /// exec and this object is gone. Does not block.
  [[nodiscard]] FileDescriptor take_exec_failures() { return std::move(exec_failures_.read_end); }

 private:
  [[nodiscard]] Pipe make_stream(Rank rank, bool is_err) const;

  Plan const& plan_;
  rlimit const& open_files_;
  std::string control_;
  RankProcesses const& processes_;
  std::vector<std::string> environment_;
  std::string master_port_;
  Pipe exec_failures_;
  FileDescriptor null_;
};

}  // namespace ddp::launcher
