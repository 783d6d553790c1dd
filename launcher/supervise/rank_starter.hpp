// The start of a job's ranks: their environment, their streams, and whether they became the program.
#pragma once

#include <sys/resource.h>

#include <string>
#include <vector>

#include "core/system/file_descriptor.hpp"
#include "launcher/plan/plan.hpp"
#include "launcher/supervise/flight_recordings.hpp"
#include "launcher/supervise/rank_processes.hpp"

namespace ddp::launcher {

/// Descriptors that do not block.
struct StartedRanks {
  struct Streams {
    FileDescriptor out;
    FileDescriptor err;
  };
  std::vector<Streams> streams;  ///< of each rank of the plan
  /// Gets an ExecFailure from each rank that did not become the program. Ends when every rank is past its
  /// exec.
  FileDescriptor exec_failures;
};

/// Adds the processes of the plan's ranks to `processes`. `open_files`: their limit. `control`: path of the
/// control socket, or an Invitation. Throws as spawn() does, and where descriptors are missing.
[[nodiscard]] StartedRanks start_ranks(Plan const& plan, rlimit const& open_files, std::string const& control,
                                       FlightRecordings const& flights, RankProcesses& processes);

}  // namespace ddp::launcher
