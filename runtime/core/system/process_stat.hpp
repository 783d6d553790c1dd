// What the kernel tells of a process in /proc/PID/stat.
#pragma once

#include <sys/types.h>

#include <string>

#include "ddp/core/failure.hpp"
#include "ddp/core/ids.hpp"

namespace ddp {

/// "S 1 4711 …": the fields behind the name, from the state on (proc(5)). Empty where there is no such
/// process.
[[nodiscard]] std::string process_stat(pid_t pid);

/// "by a signal (SIGSTOP, Ctrl-Z)", "by a debugger"; empty for a process that runs, or that cannot be seen.
[[nodiscard]] std::string how_stopped(pid_t pid);

/// "; rank 1 (process 4711) is stopped by a signal …", to end a message about a wait for that rank; empty if
/// it is not.
[[nodiscard]] std::string describe_stopped(Rank rank, pid_t pid);

/// If the process is stopped, says so in `failure`, that of a wait. The first rank that is found stopped
/// becomes the one where the failure began.
void note_stopped(Failure& failure, Rank rank, pid_t pid);

}  // namespace ddp
