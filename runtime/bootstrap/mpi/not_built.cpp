#include <algorithm>

#include "bootstrap/mpi/control.hpp"
#include "ddp/core/text.hpp"

namespace ddp {

std::shared_ptr<ControlPlane> connect_mpi_control(RankInfo const& info, Deadline /*deadline*/) {
  throw Error(ErrorCode::unsupported,
              text("this process is rank ", info.rank, " of a job started by ", to_string(info.source),
                   ", and this build of ddp has no MPI: install libopenmpi-dev and openmpi-bin and build "
                   "again, or start the ranks of one host with ddp-launch: ddp-launch --cpus ",
                   std::max(info.size, 1), " -- program arguments..."));
}

bool is_mpi(ControlPlane const& /*control*/) noexcept { return false; }

}  // namespace ddp
