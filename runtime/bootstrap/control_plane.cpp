#include "ddp/bootstrap/control_plane.hpp"

#include "bootstrap/flight_file.hpp"

namespace ddp {

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

}  // namespace ddp
