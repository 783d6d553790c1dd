// The start of a job's ranks: their environment, their streams, and whether they became the program.
#pragma once

#include <sys/resource.h>

#include <string>
#include <utility>
#include <vector>

#include "core/system/file_descriptor.hpp"
#include "launcher/plan/plan.hpp"
#include "launcher/supervise/flight_recordings.hpp"
#include "launcher/supervise/rank_processes.hpp"

namespace ddp::launcher {

/// What a rank writes. Descriptors that do not block.
struct RankStreams {
  FileDescriptor out;
  FileDescriptor err;
};

struct StartedRanks {
  std::vector<RankStreams> streams;  ///< of each rank of the plan
  /// Gets an ExecFailure from each rank that did not become the program. Ends when every rank is past its
  /// exec.
  FileDescriptor exec_failures;
};

/// Adds the processes of the plan's ranks to `processes`. `open_files`: their limit. `control`: path of the
/// control socket, or an Invitation. Throws as spawn() does, and where descriptors are missing.
class RankStarter {
 public:
  RankStarter(Plan const& plan, rlimit const& open_files, std::string control,
              FlightRecordings const& flights, RankProcesses& processes);

  [[nodiscard]] StartedRanks start_all();
  /// A new process for the plan's rank `index`, whose last one is reaped; the `replacement`th of that rank.
  /// One that does not become the program ends with exec_failure_code().
  [[nodiscard]] RankStreams replace(std::size_t index, int replacement);

 private:
  [[nodiscard]] std::pair<Child, RankStreams> start(PlannedRank const& rank, int replacement, int failure_fd);

  Plan const& plan_;
  rlimit open_files_;
  std::string control_;
  FlightRecordings const& flights_;
  RankProcesses& processes_;
  std::vector<std::string> environment_;
  std::string master_port_;
  FileDescriptor null_;
};

}  // namespace ddp::launcher
