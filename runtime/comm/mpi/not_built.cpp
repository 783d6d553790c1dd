#include "comm/mpi/factory.hpp"
#include "ddp/core/error.hpp"

namespace ddp {

std::unique_ptr<Communicator> make_mpi_communicator(MemberGroup const& /*group*/, Deadline /*deadline*/) {
  throw Error(ErrorCode::unsupported, "the mpi backend needs MPI, and this build of ddp has none");
}

}  // namespace ddp
