#include "bootstrap/server/hosted_control.hpp"

#include <unistd.h>

#include <iterator>
#include <utility>

#include "bootstrap/describe_hosts.hpp"
#include "core/hash.hpp"
#include "core/parse_number.hpp"
#include "core/system/host_identity.hpp"
#include "core/system/process_stat.hpp"
#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"

namespace ddp {
namespace {

HostedControl const* hosted(ControlPlane const& control) noexcept {
  return dynamic_cast<HostedControl const*>(&control);
}

}  // namespace

HostedControl::HostedControl(RankInfo const& info, FileDescriptor socket, Server server, Start start,
                             Deadline deadline)
    : ServerClient(info, std::move(socket), std::move(server), deadline), start_(std::move(start)) {
  try {
    meet_others(deadline);
  } catch (Error const& error) {  // there will be no World that could tell
    report_failure(error);
    throw;
  }
}

// In exchanges of few bytes: what ranks of one host say alike is sent once.
void HostedControl::meet_others(Deadline deadline) {
  std::string const identity = host_identity();
  auto const alike = [this, deadline](std::string_view name, std::string const& mine,
                                      std::span<Rank const> of, std::vector<std::string>& all) {
    all = all_gather(name, mine, of, deadline);
    std::vector<Rank> ranks;
    for (std::size_t i = 0; i < of.size(); ++i) {
      if (all[i] == mine) ranks.push_back(of[i]);
    }
    return ranks;
  };
  std::vector<std::string> others;
  auto const of_that_name = alike("ddp/host", host_name(identity), everyone(), host_names_);
  auto const here =
      alike("ddp/identity", ddp::text(StableHash().add(identity).value()), of_that_name, others);
  auto const processes = all_gather("ddp/process", ddp::text(::getpid()), here, deadline);
  for (std::size_t i = 0; i < here.size(); ++i)
    here_.emplace(here[i], parse_number<pid_t>(processes[i]).value_or(0));
}

RankInfo HostedControl::completed(RankInfo info) const {
  info.rank = rank();
  info.size = size();
  if (info.local_known) return info;
  info.local_rank = LocalRank{static_cast<int>(std::distance(here_.begin(), here_.find(rank())))};
  info.local_size = static_cast<int>(here_.size());
  return info;
}

pid_t HostedControl::process_of(Rank other) const noexcept {
  auto const found = here_.find(other);
  return found == here_.end() || other == rank() ? 0 : found->second;
}

// The server has looked at the processes that are connected by its Unix socket, unless it does not answer.
ControlClient::Outcome HostedControl::ask(wire::Frame request, Deadline deadline) {
  Outcome outcome = ServerClient::ask(std::move(request), deadline);
  if (!outcome.failure || outcome.failure->code != ErrorCode::timeout) return outcome;
  if (is_silent() || !start_.server_is_here) ddp::note_stopped(*outcome.failure, *this, everyone());
  return outcome;
}

void HostedControl::report_error(Failure const& failure) noexcept {
  ServerClient::report_error(failure);
  log_failure(failure);
}

void HostedControl::leave() noexcept {
  ServerClient::leave();
  if (start_.server) HostedServer::serve_to_the_end(std::exchange(start_.server, nullptr));
  std::exchange(start_.left, [] {})();
}

std::string hosts_of(ControlPlane const& control, std::span<Rank const> ranks) {
  auto const* const of_hosts = hosted(control);
  if (of_hosts == nullptr) return {};
  std::vector<std::size_t> places;
  for (Rank const rank : ranks) places.push_back(rank.index());
  return describe_hosts(of_hosts->everyone(), places, of_hosts->host_names());
}

void note_stopped(Failure& failure, ControlPlane const& control, std::span<Rank const> ranks) {
  auto const* const of_hosts = hosted(control);
  if (of_hosts == nullptr) return;
  for (Rank const rank : ranks) note_stopped(failure, rank, of_hosts->process_of(rank));
}

void const* mpi_comm(ControlPlane const& control) noexcept {
  auto const* const of_hosts = hosted(control);
  return of_hosts == nullptr ? nullptr : of_hosts->mpi_comm();
}

bool is_mpi(ControlPlane const& control) noexcept {
  auto const* const of_hosts = hosted(control);
  return of_hosts != nullptr && of_hosts->is_mpi();
}

}  // namespace ddp
