#include "comm/group/rank_location.hpp"

#include <unistd.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>

#include "core/record.hpp"
#include "core/system/host_identity.hpp"
#include "ddp/core/text.hpp"
#include "ddp/device/logical_device.hpp"

namespace ddp {
namespace {

constexpr char const* kNone = "-";

std::string encode(CoreShare const& cores) {
  std::string said = record(cores.cpus.size());
  for (int const cpu : cores.cpus) said += record(cpu);
  said += record(cores.quotas.size());
  for (CpuQuota const& quota : cores.quotas) said += record(quota.group, quota.cpus);
  return said;
}

RecordReader& operator>>(RecordReader& in, CoreShare& cores) {
  std::size_t cpus = 0;
  std::size_t quotas = 0;
  for (in >> cpus; in && cores.cpus.size() < cpus;) in >> cores.cpus.emplace_back();
  for (in >> quotas; in && cores.quotas.size() < quotas;) {
    CpuQuota& quota = cores.quotas.emplace_back();
    in >> quota.group >> quota.cpus;
  }
  return in;
}

std::string encode(RankLocation const& rank) {
  return record(rank.version, rank.host, to_string(rank.device.kind), rank.device.index.value(), rank.card,
                rank.uuid, rank.slice, rank.backend, rank.process, rank.build) +
         encode(rank.cores);
}

RankLocation decode_location(std::string const& said) {
  RankLocation rank;
  std::string kind;
  int index = 0;
  RecordReader in(said);
  // Further fields of another version may mean something else; check_locations() refuses that version.
  if (in >> rank.version >> rank.host && rank.version != library_version()) return rank;
  if (!(in >> kind >> index >> rank.card >> rank.uuid >> rank.slice >> rank.backend >> rank.process >>
        rank.build >> rank.cores)) {
    throw CommError(ErrorCode::protocol, text("a rank says of its device \"", said,
                                              "\"; do all ranks run the same version of this library?"));
  }
  rank.device = {kind == to_string(DeviceKind::cpu) ? DeviceKind::cpu : DeviceKind::cuda, DeviceIndex{index}};
  return rank;
}

// "rank 1 (on node-b)".
std::string with_host(std::span<RankLocation const> ranks, std::size_t place) {
  return text("rank ", number_of(ranks, place), " (on ", host_name(ranks[place].host), ")");
}

// "rank 0 on cpu:0, rank 1 on cuda:0 (0000:06:00.0)"; with hosts, if there are several.
std::string list_devices(std::span<RankLocation const> ranks) {
  bool const several_hosts = hosts(ranks) > 1;
  std::vector<std::string> each;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    std::string const who = several_hosts ? with_host(ranks, r) : text("rank ", number_of(ranks, r));
    each.push_back(text(who, " on ", ranks[r].device,
                        ranks[r].card == kNone ? std::string() : text(" (", ranks[r].card, ")")));
  }
  return join(each, ", ");
}

}  // namespace

Rank number_of(std::span<RankLocation const> ranks, std::size_t place) {
  return ranks[place].rank.value() >= 0 ? ranks[place].rank : Rank{static_cast<int>(place)};
}

RankLocation location_of(Device device, std::string const& backend) {
  RankLocation mine{host_identity(),
                    device,
                    kNone,
                    kNone,
                    0,
                    backend.empty() ? kNone : backend,
                    ::getpid(),
                    core_share(),
                    library_version(),
                    build_id()};
  if (device.kind == DeviceKind::cuda) {
    LogicalDevice const& gpu = logical_device(device);
    mine.card = gpu.pci_bus_id;
    mine.uuid = gpu.uuid.value;
    mine.slice = gpu.slice;
  }
  return mine;
}

std::vector<RankLocation> gather_locations(MemberGroup const& group, RankLocation const& mine,
                                           Deadline deadline) {
  std::vector<RankLocation> all;
  for (std::string const& said : group.tell_first("communicator/location", encode(mine), deadline)) {
    RankLocation rank = decode_location(said);
    rank.rank = group.world_ranks[all.size()];
    all.push_back(std::move(rank));
  }
  return all;
}

void check_locations(std::span<RankLocation const> ranks) {
  if (std::size_t const r = first_to_differ(ranks, &RankLocation::version); r != 0) {
    throw CommError(ErrorCode::mismatch,
                    text(with_host(ranks, 0), " runs version ", ranks[0].version, " of this library, ",
                         with_host(ranks, r), " version ", ranks[r].version,
                         "; every host needs the same: look at the program's file there, and at libddp.so "
                         "(ldd PROGRAM)"));
  }
  if (first_to_differ(ranks, [](RankLocation const& rank) { return rank.device.kind; }) != 0) {
    throw CommError(
        ErrorCode::mismatch,
        text("ranks of one group need memory of GPUs, or all of the CPU; found ", list_devices(ranks),
             "; look at what CUDA_VISIBLE_DEVICES leaves to the ranks on the CPU (empty on every "
             "rank makes CPU ranks of all, as ddp-launch --cpus does)"));
  }
  if (std::size_t const r = first_to_differ(ranks, &RankLocation::backend); r != 0) {
    throw CommError(ErrorCode::mismatch,
                    text("rank ", number_of(ranks, 0), " asks for the backend ", ranks[0].backend, ", rank ",
                         number_of(ranks, r), " for ", ranks[r].backend,
                         " (- stands for none); DDP_BACKEND must be the same on every rank"));
  }
}

std::string different_builds(std::span<RankLocation const> ranks) {
  std::size_t const r = first_to_differ(ranks, &RankLocation::build);
  if (r == 0) return {};
  return text(with_host(ranks, r), " runs another build of the program or of this library than ",
              with_host(ranks, 0), "; if that is not meant, copy the same files to every host");
}

std::size_t hosts(std::span<RankLocation const> ranks) {
  std::set<std::string_view> names;
  for (RankLocation const& rank : ranks) names.insert(rank.host);
  return names.size();
}

std::vector<bool> have_own_cores(std::span<RankLocation const> ranks) {
  std::map<std::string_view, std::vector<std::size_t>> members;  // by host
  for (std::size_t r = 0; r < ranks.size(); ++r) members[ranks[r].host].push_back(r);
  std::vector<bool> own(ranks.size());
  for (auto const& [host, together] : members) {
    std::vector<CoreShare> shares;
    for (std::size_t const r : together) shares.push_back(ranks[r].cores);
    auto const here = have_own_cores(shares);
    for (std::size_t i = 0; i < together.size(); ++i) own[together[i]] = here[i];
  }
  return own;
}

}  // namespace ddp
