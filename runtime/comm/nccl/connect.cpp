#include "comm/nccl/connect.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <optional>
#include <utility>

#include "comm/nccl/check.hpp"
#include "comm/nccl/network_interfaces.hpp"
#include "comm/nccl/teardown.hpp"
#include "core/hash.hpp"
#include "core/pausing_deadline.hpp"
#include "core/record.hpp"
#include "core/system/host_identity.hpp"
#include "ddp/bootstrap/rank_info.hpp"
#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"
#include "ddp/device/device_guard.hpp"

namespace ddp {
namespace {

// What a rank tells the others about itself; the first rank of a host also offers memory for PublishedCalls.
struct Arrival {
  std::string host;
  int nccl = 0;  // its version, as NCCL_VERSION_CODE
  SharedMemory::Handle calls;
};

std::string encode(Arrival const& arrival) { return record(arrival.host, arrival.nccl, text(arrival.calls)); }

Arrival decode_arrival(Rank rank, std::string const& value) {
  Arrival arrival;
  std::string calls;
  RecordReader in(value);
  if (!(in >> arrival.host >> arrival.nccl >> calls) ||
      !(Classic<std::istringstream>(calls) >> arrival.calls)) {
    throw CommError(ErrorCode::protocol, text("rank ", rank, " arrives for NCCL as \"", value,
                                              "\"; do all ranks run the same version of this library?"));
  }
  return arrival;
}

std::vector<Arrival> exchange(NcclGroup const& group, char const* what, Arrival const& mine,
                              Deadline deadline) {
  std::vector<Arrival> arrivals;
  for (std::string const& said : group.exchange(what, encode(mine), deadline)) {
    arrivals.push_back(decode_arrival(group.world_ranks[arrivals.size()], said));
  }
  return arrivals;
}

int nccl_version() {
  int version = 0;
  nccl::check(ncclGetVersion(&version), "asking for NCCL's version");
  return version;
}

// "2.28.9".
std::string describe_version(int code) { return text(code / 10000, '.', code / 100 % 100, '.', code % 100); }

// NCCL itself may hang, or give an error without the cause.
void check_versions(NcclGroup const& group, std::vector<Arrival> const& arrivals) {
  auto const says = [&](std::size_t r) {
    return text("rank ", group.world_ranks[r], " (on ", host_name(arrivals[r].host), ") has NCCL ",
                describe_version(arrivals[r].nccl));
  };
  if (std::size_t const r = first_to_differ(arrivals, &Arrival::nccl); r != 0) {
    throw CommError(
        ErrorCode::mismatch,
        text(says(0), ", ", says(r),
             "; NCCL works with equal versions only. Install the same one on every host, and look "
             "at LD_LIBRARY_PATH there (ldd PROGRAM | grep nccl)"));
  }
}

// For each rank the first rank of its host.
std::vector<std::size_t> first_ranks_of_hosts(std::vector<Arrival> const& arrivals) {
  std::vector<std::size_t> hosts;
  for (Arrival const& arrival : arrivals) {
    auto const first = std::ranges::find(arrivals, arrival.host, &Arrival::host);
    hosts.push_back(static_cast<std::size_t>(first - arrivals.begin()));
  }
  return hosts;
}

// NCCL listens on the network and starts a service of its own; ranks of one host need neither.
//
// It reads these variables when a process makes its first communicator, and keeps what it found for all later
// ones. So in a job of several hosts nothing is set, even if the first communicator spans one host only: a
// later one may span several. Once the communicator is made the variables are unset again, so that programs
// which this one starts do not inherit them. Several threads may make communicators at once: the first one
// sets the variables and the last one unsets them, so that no variable changes while another thread's NCCL
// reads it.
class StayOnThisHost {
 public:
  StayOnThisHost() : variables_(shared()) {
    std::lock_guard const lock(variables_.mutex);
    if (variables_.users++ > 0 || !is_job_of_one_host()) return;
    for (auto const& [name, value] : kVariables) {
      if (std::getenv(name) == nullptr && ::setenv(name, value, 0) == 0) variables_.set.push_back(name);
    }
  }
  ~StayOnThisHost() {
    std::lock_guard const lock(variables_.mutex);
    if (--variables_.users > 0) return;
    for (; !variables_.set.empty(); variables_.set.pop_back()) ::unsetenv(variables_.set.back());
  }
  StayOnThisHost(StayOnThisHost const&) = delete;
  StayOnThisHost& operator=(StayOnThisHost const&) = delete;

 private:
  static constexpr std::pair<char const*, char const*> kVariables[] = {{"NCCL_SOCKET_IFNAME", "lo"},
                                                                       {"NCCL_RAS_ENABLE", "0"}};

  // Whether it is, as far as the environment tells.
  [[nodiscard]] static bool is_job_of_one_host() {
    try {
      RankInfo const info = RankInfo::from_environment();
      return info.local_known && info.local_size == info.size;
    } catch (Error const&) {
      return false;
    }
  }

  // One for the process, as is the environment.
  struct Variables {
    std::mutex mutex;
    int users = 0;
    std::vector<char const*> set;
  };
  static Variables& shared() {
    static Variables variables;
    return variables;
  }

  Variables& variables_;
};

struct Rendezvous {
  std::vector<std::string> host_names;
  std::shared_ptr<PublishedCalls> calls;
  std::shared_ptr<SharedMemory> memory;
  std::string problem;  ///< why this rank cannot go on
};

// Returns when all ranks have come, since NCCL would wait silently for a missing one. Rank 0 makes its memory
// before the exchange; other ranks learn from it whether they are the first of their host.
Rendezvous meet(NcclGroup const& group, Deadline deadline) {
  Rendezvous rendezvous;
  Arrival mine{group.host, nccl_version(), {}};
  auto const make = [&] {
    rendezvous.memory = PublishedCalls::make_memory(group.size());
    mine.calls = rendezvous.memory->handle();
  };
  if (group.rank == 0) make();
  auto arrivals = exchange(group, "meet", mine, deadline);
  check_versions(group, arrivals);
  for (Arrival const& arrival : arrivals) rendezvous.host_names.push_back(host_name(arrival.host));
  auto hosts = first_ranks_of_hosts(arrivals);
  std::size_t const first_here = hosts[group.rank.index()];
  if (std::ranges::count(hosts, hosts[0]) != std::ssize(hosts)) {
    if (group.rank.index() == first_here && !rendezvous.memory) make();
    arrivals = exchange(group, "boards", mine, deadline);
    rendezvous.problem = nccl::why_no_interface();
  }
  try {
    if (!rendezvous.memory) {
      rendezvous.memory = std::make_shared<SharedMemory>(SharedMemory::open(arrivals[first_here].calls));
    }
    rendezvous.calls = std::make_shared<PublishedCalls>(rendezvous.memory, group.rank, std::move(hosts));
  } catch (Error const& error) {
    rendezvous.problem = error.what();
  }
  return rendezvous;
}

// Rank 0's id, once every rank can go on. It is a secret: any process that knows it can join.
ncclUniqueId agree_on_id(NcclGroup const& group, Rendezvous rendezvous, Deadline deadline) {
  ncclUniqueId id{};
  std::string value = "+";
  if (rendezvous.problem.empty() && group.rank == 0) {
    ncclResult_t const result = ncclGetUniqueId(&id);
    value.append(std::begin(id.internal), std::end(id.internal));
    if (result != ncclSuccess) rendezvous.problem = nccl::describe(result, "making an id for a communicator");
  }
  if (!rendezvous.problem.empty()) value = text("-on ", host_name(group.host), ": ", rendezvous.problem);
  auto const values = group.exchange("id", value, deadline);
  for (std::size_t r = 0; r < values.size(); ++r) {
    std::size_t const expected = r == 0 ? 1 + sizeof(id.internal) : 1;
    if (values[r].size() == expected && values[r][0] == '+') continue;
    throw Error(ErrorCode::io, text("rank ", group.world_ranks[r], " cannot take part: ",
                                    std::string_view(values[r]).substr(values[r].empty() ? 0 : 1)));
  }
  std::memcpy(id.internal, values[0].data() + 1, sizeof(id.internal));
  return id;
}

// Throws if the construction must be abandoned.
void check_construction(NcclGroup const& group, PublishedCalls const& calls, Deadline::Duration allowed,
                        PausingDeadline& timeout) {
  calls.failure().throw_if_set(group.me());
  if (auto lost = find_lost(group, [](std::size_t) { return true; })) {
    throw CommError(loss_of(std::move(*lost), group.me(), "the construction of an NCCL communicator"));
  }
  if (timeout.ended()) {
    throw CommError(ErrorCode::timeout,
                    text("rank ", group.me(), " waited ", seconds(allowed), " s for NCCL to connect ranks ",
                         join(group.world_ranks, ", "),
                         ", which are all there; with NCCL_DEBUG=INFO in the environment it says what it "
                         "does"));
  }
}

}  // namespace

NcclConnection connect_nccl(NcclGroup group, Deadline deadline) {
  DeviceGuard const guard(group.device);
  Rendezvous const rendezvous = meet(group, deadline);
  std::optional<StayOnThisHost> stay;
  if (rendezvous.calls && rendezvous.calls->is_on_one_host()) stay.emplace();
  ncclUniqueId const id = agree_on_id(group, rendezvous, deadline);
  rendezvous.memory->close_handle();
  group.host_names = rendezvous.host_names;
  group.name = text("ddp/nccl/", std::hex,
                    StableHash().add(std::string_view(id.internal, sizeof(id.internal))).value());
  auto remote = std::make_shared<RemoteCalls>(group, rendezvous.calls);
  if (!remote->listen([] {})) {
    log(LogLevel::info,
        "GPU ranks of several hosts, and a control plane that passes on no notices: what hosts call "
        "differently is not named");
  }
  auto handles = std::make_shared<NcclHandles>();
  GroupFailure& failure = rendezvous.calls->failure();
  try {
    PausingDeadline timeout(deadline);
    handles->open(id, group.rank, group.size(), group.most_ctas, [&] {
      static_cast<void>(remote->serve(0));
      check_construction(group, *rendezvous.calls, deadline.allowed(), timeout);
    });
  } catch (Error const& error) {
    Failure mine = failure_of(error);
    mine.ended_by = group.me();
    if (failure.set(mine)) remote->tell_failure(mine);
    abort_within_bound(group, [&] { handles->abort([] {}); });
    failure.throw_if_set(group.me());
    throw;
  }
  return {std::move(group), std::move(handles), rendezvous.calls, std::move(remote)};
}

}  // namespace ddp
