// Ranks of a program's own MPI communicator. Needs mpi.h, and a build with MPI.
#pragma once

#include <mpi.h>

#include <memory>

#include "ddp/bootstrap/control_plane.hpp"
#include "ddp/core/deadline.hpp"
#include "ddp/core/export.hpp"

namespace DDP_EXPORT ddp {

/// A control plane of the ranks of `comm`, with its numbers: a server in the process of its rank 0, of which
/// `comm` tells the others. What is sent by MPI later, too, goes over a duplicate of `comm`. Collective over
/// `comm`; environment variables of ranks do not matter. MPI remains the program's: it has initialised MPI,
/// with MPI_THREAD_MULTIPLE, and finalises it, when the World is gone. Throws Error(invalid_argument) for
/// MPI_COMM_NULL and for an intercommunicator, Error(unsupported) for an MPI that does not run or allows
/// calls from one thread only, and CommError(timeout) if a rank of `comm` does not come.
[[nodiscard]] std::shared_ptr<ControlPlane> connect_control_plane(MPI_Comm comm, Deadline deadline);

}  // namespace ddp
