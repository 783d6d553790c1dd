#include "comm/nccl/connect.hpp"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "bootstrap/wire.hpp"
#include "comm/nccl/check.hpp"
#include "comm/nccl/network_interfaces.hpp"
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

// "2.28.9".
std::string describe_version(int code) { return text(code / 10000, '.', code / 100 % 100, '.', code % 100); }

// What a rank tells the group's first rank about itself.
struct Arrival {
  std::string host;
  int nccl = 0;  // its version, as NCCL_VERSION_CODE
};

CommError speaks_otherwise(std::string_view who, std::string const& said) {
  return {ErrorCode::protocol, text(who, " arrives for NCCL as \"", said,
                                    "\"; do all ranks run the same version of this library?")};
}

std::vector<Arrival> decode_arrivals(NcclGroup const& group, std::vector<std::string> const& said) {
  std::vector<Arrival> arrivals(said.size());
  for (std::size_t r = 0; r < said.size(); ++r) {
    if (!(RecordReader(said[r]) >> arrivals[r].host >> arrivals[r].nccl)) {
      throw speaks_otherwise(text("rank ", group.world_ranks[r]), said[r]);
    }
  }
  return arrivals;
}

// Why NCCL cannot connect these: it would hang, or give an error without the cause. Empty if it can.
std::string different_versions(NcclGroup const& group, std::vector<Arrival> const& arrivals) {
  auto const says = [&](std::size_t r) {
    return text("rank ", group.world_ranks[r], " (on ", host_name(arrivals[r].host), ") has NCCL ",
                describe_version(arrivals[r].nccl));
  };
  std::size_t const r = first_to_differ(arrivals, &Arrival::nccl);
  if (r == 0) return {};
  return text(says(0), ", ", says(r),
              "; NCCL works with equal versions only. Install the same one on every host, and look "
              "at LD_LIBRARY_PATH there (ldd PROGRAM | grep nccl)");
}

// What the group's first rank tells all others, so that each hears of hosts and not of ranks: a problem, its
// memory for PublishedCalls, and each host's name and ranks.
std::string describe_group(NcclGroup const& group, std::vector<Arrival> const& arrivals,
                           SharedMemory::Handle const& calls) {
  std::string found = record(different_versions(group, arrivals), text(calls));
  std::map<std::string, std::vector<Rank>> ranks_of;
  for (std::size_t r = 0; r < arrivals.size(); ++r) {
    ranks_of[arrivals[r].host].emplace_back(static_cast<int>(r));
  }
  for (auto const& [host, ranks] : ranks_of) found += record(host_name(host), wire::encode_group(ranks));
  return found;
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
  std::vector<std::string> host_names;  ///< of each rank
  std::vector<std::size_t> hosts;       ///< for each rank the first rank of its host
  std::shared_ptr<PublishedCalls> calls;
  std::shared_ptr<SharedMemory> memory;
  std::string problem;  ///< why this rank cannot go on
};

void read_hosts(RecordReader& in, Rendezvous& rendezvous, std::string const& said, int size) {
  rendezvous.host_names.resize(static_cast<std::size_t>(size));
  rendezvous.hosts.resize(static_cast<std::size_t>(size));
  for (std::size_t known = 0; known < rendezvous.hosts.size();) {
    std::string name;
    std::string ranks;
    if (!(in >> name >> ranks)) throw speaks_otherwise("the first rank", said);
    wire::Reader reader(ranks);
    auto const group = wire::decode_group(reader, size);
    if (group.empty()) throw speaks_otherwise("the first rank", said);
    for (Rank const rank : group) {
      rendezvous.host_names.at(rank.index()) = name;
      rendezvous.hosts.at(rank.index()) = group.front().index();
    }
    known += group.size();
  }
}

// Returns when all ranks have come, since NCCL would wait silently for a missing one. The first rank of each
// host makes memory for PublishedCalls: the group's first rank before it knows of others, which hear of it
// with the rest; other ranks when they know whether they are the first of their host.
Rendezvous meet(NcclGroup const& group, Deadline deadline) {
  Rendezvous rendezvous;
  std::string said;
  if (group.rank == 0) rendezvous.memory = PublishedCalls::make_memory(group.size());
  auto const arrivals = group.tell_first("meet", record(group.host, nccl::version()), deadline);
  if (group.rank == 0) {
    said = describe_group(group, decode_arrivals(group, arrivals), rendezvous.memory->handle());
  }
  said = group.exchange("hosts", said, deadline).front();
  RecordReader in(said);
  std::string problem;
  std::string calls;
  if (!(in >> problem >> calls)) throw speaks_otherwise("the first rank", said);
  if (!problem.empty()) throw CommError(ErrorCode::mismatch, problem);
  read_hosts(in, rendezvous, said, group.size());
  std::size_t const me = group.rank.index();
  std::size_t const first_here = rendezvous.hosts[me];
  std::vector<Rank> here;
  for (std::size_t r = 0; r < rendezvous.hosts.size(); ++r) {
    if (rendezvous.hosts[r] == first_here) here.emplace_back(static_cast<int>(r));
  }
  if (here.size() != rendezvous.hosts.size()) rendezvous.problem = nccl::why_no_interface();
  if (first_here != 0) {
    if (me == first_here) rendezvous.memory = PublishedCalls::make_memory(group.size());
    std::string const mine = rendezvous.memory ? text(rendezvous.memory->handle()) : "";
    calls = group.part(here, group.name).exchange("memory", mine, deadline).front();
  }
  try {
    if (!rendezvous.memory) {
      rendezvous.memory = std::make_shared<SharedMemory>(SharedMemory::open(calls));
    }
    rendezvous.calls = std::make_shared<PublishedCalls>(rendezvous.memory, group.rank, rendezvous.hosts);
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
  auto handles = std::make_shared<NcclHandles>(id, group.rank, group.size(), group.most_ctas);
  auto remote = std::make_shared<RemoteCalls>(group, rendezvous.calls);
  if (!remote->listen([] {})) {
    log(LogLevel::info,
        "GPU ranks of several hosts, and a control plane that passes on no notices: what hosts call "
        "differently is not named");
  }
  return {std::move(group), std::move(handles), rendezvous.calls, std::move(remote)};
}

void open_nccl(NcclGroup const& group, NcclHandles& handles, bool on_one_host,
               std::function<bool()> const& all_came) {
  static std::atomic<bool> has_read_environment{false};  // NCCL, once a process
  std::optional<StayOnThisHost> stay;
  if (on_one_host && !has_read_environment) stay.emplace();
  auto const& waiting = group.waiting;
  Deadline::Duration const allowed =
      waiting.init_timeout.count() > 0 ? waiting.init_timeout : waiting.timeout;
  PausingDeadline timeout(allowed);
  handles.open([&] {
    if (!all_came()) timeout = PausingDeadline(allowed);
    if (!timeout.ended()) return;
    throw CommError(ErrorCode::timeout,
                    text("rank ", group.me(), " waited ", seconds(allowed), " s for NCCL to connect ranks ",
                         join(group.world_ranks, ", "),
                         ", which are all there; with NCCL_DEBUG=INFO in the environment it says what it "
                         "does; if it is only slow here, raise init_timeout (DDP_INIT_TIMEOUT)"));
  });
  has_read_environment = true;
}

}  // namespace ddp
