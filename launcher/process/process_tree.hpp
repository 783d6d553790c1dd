// Finding and ending what ranks have started and left behind.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <span>
#include <vector>

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

/// The living and unreaped children of this process, those that it adopted included.
[[nodiscard]] std::vector<pid_t> children_of_this_process();

/// How long to wait for processes after SIGKILL: nothing may be left 2 s after the launcher's end.
inline constexpr std::chrono::milliseconds kTimeToEnd{1900};

/// Sends SIGKILL to those of `list` that are meant until none lives, or kTimeToEnd has passed. Half of that
/// time is given to the guard of a rank that mpirun started, which ends by itself.
void end_processes(std::function<std::vector<pid_t>()> const& list,
                   std::function<bool(ProcessEntry const&)> const& is_meant);

/// The same with all processes of these sessions. A process that moved to a session of its own left on
/// purpose, and is not touched.
void end_sessions(std::span<pid_t const> sessions);

}  // namespace ddp::launcher
