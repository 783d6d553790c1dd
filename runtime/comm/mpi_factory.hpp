// Communicators over MPI, for code that knows nothing of MPI.
#pragma once

#include <memory>

#include "ddp/bootstrap/control_plane.hpp"
#include "ddp/comm/communicator.hpp"
#include "ddp/comm/factory.hpp"

namespace ddp {

/// The MpiCommunicator of all ranks of `control`, which must be an MpiControl. Collective. Throws
/// Error(unsupported) in a build without MPI, CommError(timeout).
[[nodiscard]] std::unique_ptr<Communicator> make_mpi_communicator(
    std::shared_ptr<ControlPlane> const& control, CommunicatorOptions const& options);

}  // namespace ddp
