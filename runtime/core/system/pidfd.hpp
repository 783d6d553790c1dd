// A process as a descriptor: unlike a process id, it never comes to mean another process.
#pragma once

#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include "core/system/file_descriptor.hpp"

namespace ddp {

/// Readable, for poll() and epoll, once the process has ended; close-on-exec. Empty, with errno set, where
/// there is no such process, no descriptor left, or no pidfd (they need Linux 5.3 and a container that allows
/// them).
[[nodiscard]] inline FileDescriptor open_pidfd(pid_t pid) noexcept {
  return FileDescriptor(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
}

}  // namespace ddp
