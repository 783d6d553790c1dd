#include "bootstrap/server/hosted_control.hpp"

#include <unistd.h>

#include <algorithm>
#include <map>
#include <utility>

#include "bootstrap/describe_hosts.hpp"
#include "core/hash.hpp"
#include "core/parse_number.hpp"
#include "core/record.hpp"
#include "core/system/host_identity.hpp"
#include "core/system/process_stat.hpp"
#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"

namespace ddp {
namespace {

HostedControl const* hosted(ControlPlane const& control) noexcept {
  return dynamic_cast<HostedControl const*>(&control);
}

// Rank 0's process, how many hosts, their names, then runs of ranks of one host: how many, and the host's
// place, which is left empty for the next one of the list that no run had before. Ranks say the same of a
// host if it is one.
std::string table_of_hosts(std::span<std::string const> said) {
  std::map<std::string_view, std::size_t> places;
  std::string names;
  std::string runs;
  for (std::size_t first = 0; first < said.size();) {
    std::size_t end = first + 1;
    while (end < said.size() && said[end] == said[first]) ++end;
    auto const [place, is_new] = places.try_emplace(said[first], places.size());
    std::string name;
    if (is_new && RecordReader(said[first]) >> name) names += record(name);
    runs += record(end - first, is_new ? std::string() : ddp::text(place->second));
    first = end;
  }
  return record(::getpid(), places.size()) + names + runs;
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

void HostedControl::meet_others(Deadline deadline) {
  std::string const identity = host_identity();
  std::string const here = record(host_name(identity), StableHash().add(identity).value());
  auto const said = gather("ddp/host", here, everyone(), deadline);
  std::string const table = said.empty() ? std::string() : table_of_hosts(said);
  auto const host_of = read_hosts(all_gather("ddp/hosts", table, everyone(), deadline).front());
  std::vector<Rank> neighbours;
  for (Rank const other : everyone()) {
    if (host_of[other.index()] != host_of[rank().index()]) continue;
    if (other == rank()) local_rank_ = LocalRank{static_cast<int>(neighbours.size())};
    neighbours.push_back(other);
  }
  local_size_ = static_cast<int>(neighbours.size());
  auto const processes = all_gather("ddp/process", ddp::text(::getpid()), neighbours, deadline);
  for (std::size_t i = 0; i < neighbours.size(); ++i) {
    pid_t const process = parse_number<pid_t>(processes[i]).value_or(0);
    if (neighbours[i] != rank()) neighbours_.push_back({neighbours[i], process});
  }
}

// Returns each rank's host, by its place in the table. Rank 0's name and process may not be known before.
std::vector<std::size_t> HostedControl::read_hosts(std::string const& table) {
  RecordReader in(table);
  pid_t process = 0;
  std::size_t count = 0;
  std::vector<std::string> names;
  for (in >> process >> count; in && names.size() < count;) in >> names.emplace_back();
  std::vector<std::size_t> host_of;
  std::size_t const ranks = everyone().size();
  std::size_t seen = 0;
  while (in && host_of.size() < ranks) {
    std::size_t together = 0;
    std::string place;
    in >> together >> place;
    std::size_t const host = place.empty() ? seen++ : parse_number<std::size_t>(place).value_or(count);
    if (!in || together == 0 || together > ranks - host_of.size() || host >= names.size()) break;
    host_of.insert(host_of.end(), together, host);
  }
  if (host_of.size() != ranks) {
    throw CommError(ErrorCode::protocol, text("rank 0 says of the ranks' hosts \"", table,
                                              "\"; do all ranks run the same version of this library?"));
  }
  for (std::size_t const host : host_of) host_names_.push_back(names[host]);
  server_is(host_names_.front(), process);
  return host_of;
}

RankInfo HostedControl::completed(RankInfo info) const {
  info.rank = rank();
  info.size = size();
  if (info.local_known) return info;
  info.local_rank = local_rank_;
  info.local_size = local_size_;
  return info;
}

pid_t HostedControl::process_of(Rank rank) const noexcept {
  auto const neighbour = std::ranges::find(neighbours_, rank, &Neighbour::rank);
  return neighbour == neighbours_.end() ? 0 : neighbour->pid;
}

// The server has looked at the processes that are connected by its Unix socket, unless it does not answer.
ControlClient::Outcome HostedControl::ask(Request const& request, Deadline deadline) {
  Outcome outcome = ServerClient::ask(request, deadline);
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
