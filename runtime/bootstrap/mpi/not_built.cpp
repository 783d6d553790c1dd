#include <algorithm>

#include "bootstrap/mpi/control.hpp"
#include "ddp/core/text.hpp"

namespace ddp {

std::shared_ptr<ControlPlane> connect_mpi_control(RankInfo const& info, Deadline /*deadline*/) {
  throw Error(ErrorCode::unsupported,
              text("this process is rank ", info.rank, " of a job started by ", to_string(info.source),
                   ", and this build of ddp has no MPI: install libopenmpi-dev and openmpi-bin and build "
                   "again; or start without MPI: srun --mpi=none, or on one host ddp-launch --cpus ",
                   std::max(info.size, 1), " -- program arguments..."));
}

void start_mpi(RankInfo const& /*info*/, Deadline /*deadline*/) {}
void leave_mpi() {}
bool is_mpi_built() noexcept { return false; }

}  // namespace ddp
