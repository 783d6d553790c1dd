#include "ddp/comm/factory.hpp"

#include <algorithm>

#include "bootstrap/server/hosted_control.hpp"
#include "comm/group/members.hpp"
#include "comm/group/rank_location.hpp"
#include "comm/group/shared_gpus.hpp"
#include "comm/mpi/factory.hpp"
#include "comm/nccl/communicator.hpp"
#include "comm/shm/communicator.hpp"
#include "comm/solo/communicator.hpp"
#include "comm/staged/communicator.hpp"
#include "core/record.hpp"
#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"

namespace ddp {
namespace {

struct Choice {
  std::string_view backend;
  std::string reason;
};

// Facts about these ranks, the same for each of them.
struct Surroundings {
  Device device;
  std::size_t ranks = 1;
  std::size_t hosts = 1;
  bool mpi = false;    // the ranks are MPI's too
  std::string shared;  // which of them share a GPU, if any do
};

// The backend that fits these ranks: the same choice on each.
Choice choose(Surroundings const& here) {
  if (here.ranks == 1) return {"solo", "one rank"};
  if (here.device.kind == DeviceKind::cuda) {
    return here.shared.empty() ? Choice{"nccl", "each rank has a GPU"} : Choice{"staged", here.shared};
  }
  if (here.hosts == 1) return {"shm", "CPU ranks of one host"};
  return {"mpi", text("CPU ranks of ", here.hosts, " hosts")};
}

// The backends that these ranks can have. One rank needs none, whichever backend is asked for.
std::vector<std::string_view> available(Surroundings const& here) {
  std::vector<std::string_view> names;
  if (here.ranks == 1) names.emplace_back("solo");
  if (here.device.kind == DeviceKind::cuda) {
    names.emplace_back("nccl");
    names.emplace_back("staged");
    return names;
  }
  if (here.hosts == 1) names.emplace_back("shm");
  if (here.mpi || here.ranks == 1) names.emplace_back("mpi");
  return names;
}

// The backend that a rank asked for.
Choice insist(std::string const& asked, Surroundings const& here) {
  auto const names = available(here);
  auto const found = std::find(names.begin(), names.end(), asked);
  if (found == names.end()) {
    throw Error(
        ErrorCode::unsupported,
        text("no backend \"", asked, "\" for ", here.ranks, here.ranks == 1 ? " rank" : " ranks", " on ",
             here.hosts, here.hosts == 1 ? " host" : " hosts", " with memory of ", here.device,
             "; there is: ", join(names, ", "),
             asked == "mpi" ? " (mpi needs ranks that mpirun or srun started, and a build with MPI)" : ""));
  }
  if (asked == "nccl" && !here.shared.empty()) {
    throw Error(ErrorCode::unsupported, text("NCCL takes one rank a GPU, and ", here.shared,
                                             "; give each rank a GPU of its own, or ask for staged"));
  }
  return {here.ranks == 1 ? "solo" : *found, "asked for"};
}

// CUDA may run the streams of a process on one GPU one after the other. It does not know when a stream waits
// for the host, and the host for another stream.
void refuse_threads_on_one_card(std::span<RankLocation const> ranks) {
  if (std::string const shared = shared_in_one_process(ranks); !shared.empty()) {
    throw Error(ErrorCode::unsupported,
                text(shared,
                     " in one process, where one could wait for another for ever; use DataParallel, "
                     "or start a process for each rank (ddp-launch --virtual)"));
  }
}

// Otherwise each host would train on that GPU as if it were its own.
void refuse_a_card_of_two_hosts(std::span<RankLocation const> ranks) {
  if (std::string const shared = shared_between_hosts(ranks); !shared.empty()) {
    throw CommError(
        ErrorCode::mismatch,
        text(shared,
             ", so these hosts are one machine (containers, perhaps): give each its own GPUs, with "
             "CUDA_VISIBLE_DEVICES there; DDP_BACKEND=staged lets ranks share one all the same"));
  }
}

// A rank's place in its group.
Rank place_of(Rank rank, std::span<Rank const> members) {
  auto const found = std::ranges::find(members, rank);
  require(found != members.end(), [&] {
    return text("a communicator of ranks ", join(members, ", "), ": rank ", rank, " is none of them");
  });
  return Rank{static_cast<int>(found - members.begin())};
}

void check_timeouts(CommunicatorOptions const& options) {
  require(options.timeout.count() > 0 && options.init_timeout.count() > 0,
          "a communicator's timeouts must be positive");
}

std::unique_ptr<Communicator> make_shm(MemberGroup const& group, Device device, Deadline deadline) {
  auto region = group.rank == 0 ? ShmCommunicator::make_region(group.size()) : nullptr;
  auto const offers = group.exchange("communicator/offer", region ? text(region->handle()) : "", deadline);
  if (!region) region = std::make_shared<SharedMemory>(SharedMemory::open(offers[0]));
  static_cast<void>(group.exchange("communicator/open", {}, deadline));
  region->close_handle();
  return std::make_unique<ShmCommunicator>(std::move(region), false, group, device);
}

std::unique_ptr<Communicator> make(std::string_view backend, MemberGroup const& group,
                                   Surroundings const& here, CommunicatorOptions const& options) {
  if (backend == "solo") return std::make_unique<SoloCommunicator>(here.device, options.timeout);
  if (backend == "nccl") return make_nccl_communicator(group, here.device, options);
  Deadline const deadline = Deadline::after(options.init_timeout);
  bool const staged = backend == "staged";
  if (here.hosts > 1 && !here.mpi) {
    throw Error(
        ErrorCode::unsupported,
        text(staged ? "ranks that share a GPU, on " : "CPU ranks of ", here.hosts,
             " hosts exchange data through MPI, and these ranks were started without it: start them "
             "with mpirun, srun --mpi=pmix or ddp-launch --hostfile, or give each a GPU of its own (MPI ends "
             "a job with its first lost rank, whatever DDP_MIN_RANKS says)"));
  }
  auto host = backend == "shm" || (staged && here.hosts == 1)
                  ? make_shm(group, staged ? Device{} : here.device, deadline)
                  : make_mpi_communicator(group, deadline);
  if (!staged) return host;
  return std::make_unique<StagedCommunicator>(std::move(host), here.device, options.timeout, options.commits);
}

// What the rank at place 0 concludes for all, from where they are. So each of n ranks hears a few words, and
// not where all others are.
struct Conclusion {
  std::string backend;
  std::string reason;  // for rank 0's log, as is the next
  std::string shared;  // which ranks share a GPU, if any do
  std::size_t hosts = 1;
  std::vector<bool> own_cores;   // whether each rank has a CPU of its own; one for all where they are alike
  std::string problem;           // why there is no communicator; empty if there is one
  ErrorCode code{};              // of the problem
  bool is_of_the_group = false;  // the problem is a CommError

  [[nodiscard]] bool has_own_core(std::size_t rank) const { return own_cores[rank % own_cores.size()]; }
};

std::string encode(Conclusion const& found) {
  std::string own_cores;
  for (bool const own : found.own_cores) own_cores += own ? '1' : '0';
  return record(found.backend, found.hosts, own_cores, found.problem, static_cast<int>(found.code),
                static_cast<int>(found.is_of_the_group));
}

Conclusion decode_conclusion(std::string const& said) {
  Conclusion found;
  int code = 0;
  int is_of_the_group = 0;
  std::string own_cores;
  if (!(RecordReader(said) >> found.backend >> found.hosts >> own_cores >> found.problem >> code >>
        is_of_the_group) ||
      (own_cores.empty() && found.problem.empty())) {
    throw CommError(ErrorCode::protocol, text("rank 0 says of the communicator \"", said,
                                              "\"; do all ranks run the same version of this library?"));
  }
  for (char const own : own_cores) found.own_cores.push_back(own == '1');
  found.code = static_cast<ErrorCode>(code);
  found.is_of_the_group = is_of_the_group != 0;
  return found;
}

void throw_problem(Conclusion const& found) {
  if (found.problem.empty()) return;
  if (found.is_of_the_group) throw CommError(found.code, found.problem);
  throw Error(found.code, found.problem);
}

Conclusion conclude(std::span<RankLocation const> ranks, bool mpi, Device device,
                    std::string const& backend) {
  Conclusion found;
  try {
    check_locations(ranks);
    refuse_threads_on_one_card(ranks);
    if (backend != "staged") refuse_a_card_of_two_hosts(ranks);
    Surroundings const here{device, ranks.size(), hosts(ranks), mpi, shared_gpus(ranks)};
    Choice const choice = backend.empty() ? choose(here) : insist(backend, here);
    found.backend = choice.backend;
    found.reason = choice.reason;
    found.hosts = here.hosts;
    found.shared = here.shared;
    found.own_cores = have_own_cores(ranks);
    if (first_to_differ(found.own_cores) == 0) found.own_cores.resize(1);
  } catch (Error const& error) {
    found.problem = error.what();
    found.code = error.code();
    found.is_of_the_group = dynamic_cast<CommError const*>(&error) != nullptr;
  }
  return found;
}

// "every rank has a CPU of its own".
std::string describe_cores(Conclusion const& found, std::size_t ranks) {
  std::vector<std::size_t> without;
  for (std::size_t r = 0; r < ranks; ++r) {
    if (!found.has_own_core(r)) without.push_back(r);
  }
  if (without.empty()) return "every rank has a CPU of its own";
  return text("ranks without a CPU of their own, which give way while they wait: ", join(without, ", "));
}

void log_choice(Communicator const& made, Conclusion const& found, std::span<RankLocation const> ranks) {
  bool const waits_on_cpus = made.size() > 1 && made.backend() != "nccl";
  log(LogLevel::info,
      text("communicator: ", made.backend(), ", ", made.size(), " ranks, ", made.device(), " (", found.reason,
           ")", waits_on_cpus ? "; " + describe_cores(found, ranks.size()) : ""));
  if (auto const builds = different_builds(ranks); !builds.empty()) log(LogLevel::warning, builds);
  if (share_unasked(ranks)) {
    log(LogLevel::warning,
        text(found.shared,
             ": what they exchange goes through host memory, which is slow; start one rank "
             "a GPU, or with ddp-launch --virtual if sharing is meant. Does a list of hosts name one "
             "machine twice, by two names?"));
  }
}

}  // namespace

std::unique_ptr<Communicator> make_communicator(std::shared_ptr<ControlPlane> control, Device device,
                                                CommunicatorOptions const& options) {
  auto const everyone = control->everyone();
  return make_communicator(std::move(control), "ddp", everyone, device, options);
}

std::unique_ptr<Communicator> make_communicator(std::shared_ptr<ControlPlane> control,
                                                std::string const& name, std::span<Rank const> members,
                                                Device device, CommunicatorOptions const& options) {
  check_timeouts(options);
  Rank const rank = place_of(control->rank(), members);
  MemberGroup group{std::move(control),
                    name,
                    {members.begin(), members.end()},
                    rank,
                    {options.timeout, options.timeout_setting, false, options.init_timeout}};
  Deadline const deadline = Deadline::after(options.init_timeout);
  auto const ranks = gather_locations(group, location_of(device, options.backend), deadline);
  Conclusion mine;
  if (rank == Rank{0}) mine = conclude(ranks, is_mpi(*group.control), device, options.backend);
  auto const said = group.exchange("communicator/conclusion", rank == Rank{0} ? encode(mine) : "", deadline);
  Conclusion const found = decode_conclusion(said.front());
  throw_problem(found);
  group.waiting.may_spin = found.has_own_core(rank.index());
  auto made =
      make(found.backend, group, {device, members.size(), found.hosts, is_mpi(*group.control), {}}, options);
  if (rank == Rank{0}) log_choice(*made, mine, ranks);
  return made;
}

std::vector<std::unique_ptr<Communicator>> make_in_process_communicators(
    int size, CommunicatorOptions const& options, std::vector<std::shared_ptr<ControlPlane>> const& control) {
  require(size >= 1, text("a group has at least one rank, ", size, " asked for"));
  require(control.empty() || control.size() == static_cast<std::size_t>(size),
          text(control.size(), " control planes for ", size, " ranks"));
  check_timeouts(options);
  if (!options.backend.empty())
    static_cast<void>(
        insist(options.backend, Surroundings{Device{}, static_cast<std::size_t>(size), 1, false, {}}));
  std::vector<std::unique_ptr<Communicator>> made;
  if (size == 1) {
    made.push_back(std::make_unique<SoloCommunicator>(Device{}, options.timeout));
    return made;
  }
  auto const region = ShmCommunicator::make_region(size);
  auto const ranks = all_ranks(size);
  auto const own_cores = have_own_cores(std::vector(ranks.size(), core_share()));
  for (Rank const rank : ranks) {
    made.push_back(std::make_unique<ShmCommunicator>(
        region, true,
        MemberGroup{control.empty() ? nullptr : control[rank.index()],
                    "",
                    ranks,
                    rank,
                    {options.timeout, options.timeout_setting, own_cores[rank.index()]}},
        Device{}));
  }
  return made;
}

}  // namespace ddp
