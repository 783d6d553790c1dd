// The process beside each rank of an mpirun that leaves nothing of it behind.
#pragma once

#include "launcher/mpirun/mpi_shim.hpp"

namespace ddp::launcher {

/// Starts the guard of this process. When what started this process dies, in whatever way, it kills this
/// process with its children, and when this process ends, what is left of them (L7); then it removes the
/// memory that Open MPI left in /dev/shm, and ends mpirun's daemon of this host if the network has left that.
/// Throws ExitError(75).
void start_mpi_rank_guard(Place const& place);

}  // namespace ddp::launcher
