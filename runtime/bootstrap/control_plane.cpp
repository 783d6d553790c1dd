#include "ddp/bootstrap/control_plane.hpp"

#include <cstdlib>

#include "bootstrap/in_process/control.hpp"
#include "bootstrap/mpi/control.hpp"
#include "bootstrap/server/rendezvous.hpp"
#include "core/system/absolute_path.hpp"
#include "core/system/own_process.hpp"
#include "core/system/replace_file.hpp"
#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"
#include "observe/flight_json.hpp"
#include "observe/flight_recorder.hpp"

namespace ddp {
namespace {

// What DDP_FLIGHT_DIR names, "" for nothing. "" under ddp-launch, which sets DDP_FLIGHT and writes the file
// itself, however a rank ends. Never destroyed: a World that is a global object may fail late.
std::string const& flight_folder() {
  static auto const* const folder = new std::string([] {
    char const* const given = std::getenv("DDP_FLIGHT_DIR");
    return given == nullptr || std::getenv("DDP_FLIGHT") != nullptr ? "" : absolute_path(given);
  }());
  return *folder;
}

// Writes this process's last collectives to rankR.flight.json there.
void write_flight_file(Rank rank) noexcept {
  try {
    if (flight_folder().empty()) return;
    std::string const path = text(flight_folder(), "/", flight_file_name(rank));
    replace_file(path, flight_json(rank, flight_recorder().log()));
    log(LogLevel::info, text("the last collectives of rank ", rank, ": ", path));
  } catch (std::exception const& failure) {
    log(LogLevel::warning, text("DDP_FLIGHT_DIR: ", failure.what()));
  }
}

}  // namespace

std::vector<Rank> ControlPlane::everyone() const { return all_ranks(size()); }

void ControlPlane::barrier(std::string_view name, Deadline deadline) {
  static_cast<void>(all_gather(name, {}, everyone(), deadline));
}

std::vector<std::string> ControlPlane::gather(std::string_view name, std::string_view value,
                                              std::span<Rank const> group, Deadline deadline) {
  auto values = all_gather(name, value, group, deadline);
  if (rank() != group.front()) values.clear();
  return values;
}

std::optional<Failure> ControlPlane::interruption() const { return std::nullopt; }

Membership ControlPlane::rebuild(std::string_view /*value*/, Deadline /*deadline*/) {
  throw Error(ErrorCode::unsupported, "rebuild(): the ranks of this control plane cannot go on after a loss");
}

void ControlPlane::notify(std::span<Rank const> /*to*/, std::string_view /*name*/,
                          std::string_view /*bytes*/) {
  throw Error(ErrorCode::unsupported, "this control plane passes on no notices (listen() returns null)");
}

std::shared_ptr<void> ControlPlane::listen(std::string_view /*name*/, Listener const& /*listener*/) {
  return {};
}

std::vector<std::string> ControlPlane::waits_of(std::span<Rank const> /*ranks*/) noexcept { return {}; }

void ControlPlane::report_failure(std::exception const& error) noexcept {
  if (failure_reported_.exchange(true)) return;
  Failure failure = failure_of(error);
  if (failure.ranks.empty()) failure.ranks = {rank()};  // its own failure
  report_error(failure);
  write_flight_file(rank());
}

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
