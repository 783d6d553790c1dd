// mpirun's daemon on each host, orted, as the kernel shows it.
#pragma once

#include <sys/types.h>

#include <iosfwd>
#include <set>
#include <string>

namespace ddp::launcher {

/// Whether this process is orted.
[[nodiscard]] bool is_mpi_daemon(pid_t pid);

/// Whether it has a TCP connection whose other end has not acknowledged anything for about a minute.
[[nodiscard]] bool is_unheard(pid_t pid);

/// The inodes of such connections in a table as /proc/net/tcp has it.
[[nodiscard]] std::set<std::string> unheard_sockets(std::istream& table);

}  // namespace ddp::launcher
