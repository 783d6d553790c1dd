// Makes communicators over MPI, for code that does not include MPI's headers.
#pragma once

#include <memory>

#include "comm/group/members.hpp"
#include "ddp/comm/communicator.hpp"
#include "ddp/core/deadline.hpp"

namespace ddp {

/// The MpiCommunicator of `group`, whose ranks MPI started (is_mpi()). Collective. `deadline`: of the
/// construction. Throws Error(unsupported) in a build without MPI, CommError(timeout).
[[nodiscard]] std::unique_ptr<Communicator> make_mpi_communicator(MemberGroup const& group,
                                                                  Deadline deadline);

}  // namespace ddp
