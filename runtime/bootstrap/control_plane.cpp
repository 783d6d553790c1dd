#include "ddp/bootstrap/control_plane.hpp"

#include "bootstrap/flight_file.hpp"
#include "bootstrap/in_process/control.hpp"
#include "bootstrap/launcher/launcher_client.hpp"
#include "bootstrap/mpi/control.hpp"
#include "ddp/core/text.hpp"

namespace ddp {

std::vector<Rank> ControlPlane::everyone() const { return all_ranks(size()); }

void ControlPlane::barrier(std::string_view name, Deadline deadline) {
  static_cast<void>(all_gather(name, {}, everyone(), deadline));
}

void ControlPlane::report_failure(std::exception const& error) noexcept {
  if (failure_reported_.exchange(true)) return;
  auto const* const ours = dynamic_cast<Error const*>(&error);
  report_error(ours != nullptr ? ours->code() : ErrorCode::invalid_state, error.what());
  write_flight_file(rank());
}

std::shared_ptr<ControlPlane> connect_control_plane(RankInfo const& info, Deadline deadline) {
  bool const size_is_known = info.source != RankSource::pmix;
  require(!size_is_known || (info.size >= 1 && info.rank.value() >= 0 && info.rank.value() < info.size),
          text("rank ", info.rank, " of ", info.size, " is no place in a job: expected 0 to size - 1"));
  if (info.source == RankSource::launcher) return std::make_shared<LauncherClient>(info, deadline);
  // One rank needs nobody, whoever started it.
  if (size_is_known && info.size == 1) return std::make_shared<SoloControl>(info.error_file);
  return connect_mpi_control(info, deadline);
}

}  // namespace ddp
