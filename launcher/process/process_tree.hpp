// Finding and ending what ranks have started and left behind.
#pragma once

#include <sys/types.h>

#include <span>
#include <vector>

#include "ddp/core/deadline.hpp"

namespace ddp::launcher {

/// One process as /proc shows it.
struct ProcessEntry {
  pid_t pid = -1;
  pid_t parent = -1;
  pid_t group = -1;
  pid_t session = -1;
  bool zombie = false;
};

/// `pid` of the result is -1 when there is no such process (any more).
[[nodiscard]] ProcessEntry read_process(pid_t pid);

/// Every process that this one can see.
[[nodiscard]] std::vector<ProcessEntry> all_processes();

/// The living and unreaped children of this process, those that it adopted included.
[[nodiscard]] std::vector<pid_t> children_of_this_process();

/// Whether it is the guard of a rank that mpirun started, which ends by itself: half of the time is given to
/// it.
[[nodiscard]] bool is_cleaning_up(pid_t pid, Deadline deadline);

/// Sends SIGKILL to all of these sessions until none has a process or the deadline passes. A process that
/// moved to a session of its own left on purpose, and is not touched.
void end_sessions(std::span<pid_t const> sessions, Deadline deadline);

}  // namespace ddp::launcher
