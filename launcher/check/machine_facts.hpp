// What --check looks at beyond what starting ranks needs. Plain values: machine_check.hpp judges them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ddp/core/ids.hpp"
#include "launcher/check/library_versions.hpp"

namespace ddp::launcher {

/// A limit of this process; nullopt is unlimited.
using Limit = std::optional<std::size_t>;

/// What this build was made with; empty where it was made without.
struct BuiltWith {
  std::string cuda;  ///< the toolkit's version, "13.0.88"
  std::string nccl;  ///< nccl.h's version, "2.28.3"
  std::string mpi;   ///< MPI's words at configure time, "Open MPI 4.1.4"
};

struct ShmFilesystem {
  Bytes total{0};
  Bytes free{0};
  bool writable = false;  ///< by this user
};

struct MachineFacts {
  std::optional<ShmFilesystem> shared_memory;  ///< /dev/shm; nullopt where there is none
  Limit locked_memory;                         ///< bytes
  Limit open_files;                            ///< what ranks have
  Limit most_open_files;                       ///< what ddp-launch may raise that to
  std::vector<std::string> rdma_devices;       ///< InfiniBand and RoCE adapters, "mlx5_0"
  std::string kernel;                          ///< "6.1.0-13-amd64"
  std::string pidfd_problem;                   ///< why a process cannot be watched; empty where it can
  LibraryVersion nccl;
  LibraryVersion mpi;
  LibraryVersion mpirun;  ///< empty path: there is none in PATH
  BuiltWith built_with;
};

/// Call it before the driver is asked, while this process has one thread: it asks child processes for
/// versions, some 50 ms with Open MPI. Throws ExitError(75) where no process can be started.
[[nodiscard]] MachineFacts read_facts(BuiltWith const& built_with);

}  // namespace ddp::launcher
