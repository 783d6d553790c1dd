// How a rank finds its control plane.
#include "bootstrap/flight_file.hpp"
#include "bootstrap/in_process/control.hpp"
#include "bootstrap/mpi/control.hpp"
#include "bootstrap/server/rendezvous.hpp"
#include "core/system/own_process.hpp"
#include "ddp/bootstrap/control_plane.hpp"
#include "ddp/core/text.hpp"

namespace ddp {

std::shared_ptr<ControlPlane> connect_control_plane(RankInfo const& info, Deadline deadline) {
  static_cast<void>(flight_folder());  // relative to the present working directory
  bool const size_is_known = info.source != RankSource::pmix;
  require(!size_is_known || (info.size >= 1 && info.rank.value() >= 0 && info.rank.value() < info.size),
          text("rank ", info.rank, " of ", info.size, " is no place in a job: expected 0 to size - 1"));
  if (info.source == RankSource::launcher) return {new ServerClient(info, deadline), DeleteOwn{}};
  if (!info.address.empty()) return connect_by_address(info, deadline);
  // One rank needs nobody, whoever started it.
  if (size_is_known && info.size == 1) return std::make_shared<SoloControl>(info.error_file);
  if (info.control.empty()) return connect_mpi_control(info, deadline);
  // Ranks meet first, so that a missing one is named: MPI_Init would only wait for it.
  auto control = accept_invitation(info, Invitation::parse(info.control),
                                   {.is_mpi = is_mpi_built(), .left = &leave_mpi}, deadline);
  start_mpi(info, deadline);
  return control;
}

}  // namespace ddp
