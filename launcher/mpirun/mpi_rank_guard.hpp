// The process beside each rank of an mpirun, which cleans up after it.
#pragma once

#include "launcher/mpirun/mpi_shim.hpp"

namespace ddp::launcher {

/// Starts the guard of this process. It kills this process and its children when the parent dies, and the
/// children that are left when this process ends (L7). Then it removes the memory that Open MPI left in
/// /dev/shm, and ends mpirun's daemon on this host if the network has cut that off. Throws ExitError(75).
void start_mpi_rank_guard(RankPlace const& place);

}  // namespace ddp::launcher
