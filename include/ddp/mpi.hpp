// A World of the ranks of a program's own MPI communicator. Needs mpi.h, and a build with MPI.
#pragma once

#include <mpi.h>

#include <utility>

#include "ddp/bootstrap/mpi.hpp"
#include "ddp/core/export.hpp"
#include "ddp/parallel/world.hpp"

namespace DDP_EXPORT ddp {

/// World::init() for the ranks of `comm`: all of a job, or some, such as those that train beside others that
/// simulate. Worlds of communicators that share no rank are independent. Collective over `comm`. Throws as
/// connect_control_plane() and World::over().
[[nodiscard]] inline World init_world(MPI_Comm comm, WorldOptions options = {}) {
  return World::over([comm](Deadline deadline) { return connect_control_plane(comm, deadline); },
                     std::move(options));
}

}  // namespace ddp
