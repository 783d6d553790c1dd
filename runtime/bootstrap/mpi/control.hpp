// Ranks that mpirun, srun or another process manager of MPI started.
#pragma once

#include <memory>

#include "ddp/bootstrap/control_plane.hpp"

namespace ddp {

/// Starts MPI in this process, and joins the server in rank 0's process, whose address MPI broadcasts. Throws
/// Error(unsupported) if MPI's ranks are not those that the environment tells of, and in builds without MPI;
/// CommError(timeout). Where MPI_Init itself hangs past the deadline, the process ends with a report.
[[nodiscard]] std::shared_ptr<ControlPlane> connect_mpi_control(RankInfo const& info, Deadline deadline);

// For ranks that mpirun started and that have a control plane already. A build without MPI does nothing.

/// Starts MPI, and errors as above.
void start_mpi(RankInfo const& info, Deadline deadline);
/// This rank has left: its exit may wait for others in MPI_Finalize.
void leave_mpi();
[[nodiscard]] bool is_mpi_built() noexcept;

}  // namespace ddp
