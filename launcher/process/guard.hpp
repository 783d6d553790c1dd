// The process that outlives the launcher, if only by a moment.
#pragma once

#include <sys/types.h>

#include <string>

#include "core/system/file_descriptor.hpp"

namespace ddp::launcher {

/// A small forked process that waits on a pipe. When the launcher dies, in whatever way, it kills the
/// sessions of all watched ranks and removes the control directory (L7). The kernel's parent-death signal,
/// which the ranks have too, does not reach grandchildren.
class Guard {
 public:
  /// Forks. `control_directory` is removed with all that is in it, if the launcher cannot do that itself.
  /// Throws ExitError(75) when the machine has no process left.
  explicit Guard(std::string const& control_directory);
  /// Ends the guard: from here on nothing is guarded.
  ~Guard();
  Guard(Guard const&) = delete;
  Guard& operator=(Guard const&) = delete;

  /// A rank writes its pid (one pid_t) here before it can have children: from then on it is watched.
  [[nodiscard]] int fd() const noexcept { return pipe_.get(); }
  /// As writing to fd(), but from the launcher: for a guard that was started later than the rank.
  void watch(pid_t rank) noexcept { tell(rank); }
  /// The rank's session is empty: its number may soon belong to somebody else.
  void forget(pid_t rank) noexcept { tell(-rank); }
  /// Whether the guard itself has ended: somebody killed it. True once.
  [[nodiscard]] bool has_ended() noexcept;

  [[nodiscard]] pid_t pid() const noexcept { return pid_; }

 private:
  void tell(pid_t number) noexcept;

  pid_t pid_ = -1;
  FileDescriptor pipe_;  ///< the write end; closed by the kernel when the launcher dies
};

/// Forks a process to be a guard. Throws ExitError(75) when the machine has no process left.
[[nodiscard]] pid_t fork_guard();

inline constexpr char const* kGuardName = "ddp-guard";

/// Renames this process as a guard, and ignores the signals of a job: killing everything called ddp-launch
/// must not kill the guard. A guard that is stopped goes on within a second: a timer wakes it.
void name_guard_process();

}  // namespace ddp::launcher
