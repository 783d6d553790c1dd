// Starting one rank.
#pragma once

#include <sys/resource.h>
#include <sys/types.h>

#include <string>
#include <vector>

#include "core/system/file_descriptor.hpp"
#include "ddp/core/ids.hpp"

namespace ddp::launcher {

struct SpawnRequest {
  Rank rank;
  std::string program;
  std::vector<std::string> arguments;    ///< argv, as it is: no shell reads it (L14)
  std::vector<std::string> environment;  ///< "NAME=value"
  std::vector<int> cpus;                 ///< that it is to keep to; empty: those of the launcher
  int stdin_fd = -1;
  int stdout_fd = -1;
  int stderr_fd = -1;
  int failure_fd = -1;  ///< close-on-exec; gets an ExecFailure if exec fails
  int guard_fd = -1;    ///< close-on-exec; gets the child's pid before exec, so before it can have children
  rlimit open_files{};  ///< that the launcher had before it raised its own
};

/// What a child writes to failure_fd, in one piece, before it exits with 126 or 127.
struct ExecFailure {
  int rank;
  int error_number;
};

struct Child {
  pid_t pid = -1;
  FileDescriptor pidfd;
};

struct Pipe {
  FileDescriptor read_end;
  FileDescriptor write_end;
};

/// A pipe that no program inherits. Throws ExitError(75) when no descriptor is left.
[[nodiscard]] Pipe make_pipe();

/// `words` as exec takes them: with a null pointer at the end.
[[nodiscard]] std::vector<char*> pointers(std::vector<std::string> const& words);

/// Forks and execs without waiting for exec. The child leads a session (and process group) of its own, has
/// signals as reset_signals() leaves them, and gets SIGKILL when the launcher dies. Descriptors that it must
/// not have are close-on-exec. Throws ExitError(75) when the machine has no process or descriptor left.
[[nodiscard]] Child spawn(SpawnRequest const& request);

/// Sends `signal` to the child's process group, or to the child alone while it has none yet.
void signal_group(Child const& child, int signal);

}  // namespace ddp::launcher
