#include "ddp/bootstrap/rank_info.hpp"

#include <array>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "bootstrap/slurm_hosts.hpp"
#include "core/hash.hpp"
#include "core/parse_number.hpp"
#include "core/system/absolute_path.hpp"
#include "ddp/core/error.hpp"
#include "ddp/core/text.hpp"

namespace ddp {
namespace {

using Lookup = RankInfo::Lookup;

// More ranks than any job has; below it sums cannot overflow.
constexpr int kMostRanks = 1 << 20;
constexpr std::size_t kLongestSecret = 255;

[[noreturn]] void refuse(std::string const& what) { throw Error(ErrorCode::invalid_argument, what); }

int number(std::string const& name, std::string const& value, int least, int most) {
  auto const parsed = parse_number<long long>(value);
  if (!parsed || *parsed < least || *parsed > most) {
    refuse(text(name, "=\"", value, "\": expected a whole number from ", least, " to ", most));
  }
  return static_cast<int>(*parsed);
}

// The variables that give a process's place.
struct Names {
  RankSource source;
  char const* rank;
  char const* size;
  char const* local_rank;
  char const* local_size;
};
constexpr Names kLauncher{RankSource::launcher, "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
constexpr Names kAddress{RankSource::address, "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
constexpr Names kOpenMpi{RankSource::open_mpi, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                         "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"};
// MPICH's and Intel MPI's process manager.
constexpr Names kPmi{RankSource::pmi, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"};

bool all_set(Lookup const& lookup, std::initializer_list<char const*> names) {
  for (char const* name : names) {
    if (!lookup(name)) return false;
  }
  return true;
}

// rank and size, checked against each other.
template <class AnyRank>
void read_pair(Lookup const& lookup, char const* rank_name, char const* size_name, AnyRank& rank, int& size) {
  size = number(size_name, *lookup(size_name), 1, kMostRanks);
  rank = AnyRank{number(rank_name, *lookup(rank_name), 0, kMostRanks)};
  if (rank.value() >= size) {
    refuse(text(rank_name, "=", rank, " and ", size_name, "=", size, " contradict each other: expected ",
                rank_name, " from 0 to ", size - 1));
  }
}

// Assumes that all ranks of the job are on this host, since it is not known which ones are.
void take_for_one_host(RankInfo& info) {
  info.local_rank = LocalRank{info.rank.value()};
  info.local_size = info.size;
  info.local_known = false;
}

RankInfo read(Lookup const& lookup, Names const& names) {
  RankInfo info;
  info.source = names.source;
  if (names.source == RankSource::open_mpi) info.control = lookup("DDP_INVITATION").value_or("");
  read_pair(lookup, names.rank, names.size, info.rank, info.size);
  if (!all_set(lookup, {names.local_rank, names.local_size})) {
    take_for_one_host(info);
    return info;
  }
  read_pair(lookup, names.local_rank, names.local_size, info.local_rank, info.local_size);
  if (info.local_size > info.size) {
    refuse(text(names.local_size, "=", info.local_size, " and ", names.size, "=", info.size,
                " contradict each other: a host has at most all ranks of the job"));
  }
  return info;
}

RankInfo from_launcher(Lookup const& lookup, std::string control) {
  if (control.empty()) {
    refuse("DDP_CONTROL=\"\": expected the path of ddp-launch's control socket. Unset it to run alone");
  }
  for (char const* name : {kLauncher.rank, kLauncher.size, kLauncher.local_rank, kLauncher.local_size}) {
    if (!lookup(name)) {
      refuse(text("DDP_CONTROL=\"", control, "\" says that ddp-launch started this process, but ", name,
                  " is not set. Start it with ddp-launch, or unset DDP_CONTROL to run alone"));
    }
  }
  RankInfo info = read(lookup, kLauncher);
  info.control = std::move(control);
  return info;
}

// The entry of this node in "2(x3),1": 2, 2, 2, 1 tasks on nodes 0 to 3.
int tasks_on_node(std::string const& name, std::string const& value, int node) {
  auto const malformed = [&] { refuse(text(name, "=\"", value, "\": expected counts such as 2(x3),1")); };
  std::string_view left = value;
  int first = 0;  // node of the entry
  while (!left.empty()) {
    std::string_view entry = left.substr(0, left.find(','));
    left.remove_prefix(std::min(left.size(), entry.size() + 1));
    std::optional<long long> nodes = 1;
    if (auto const open = entry.find("(x"); open != std::string_view::npos && entry.back() == ')') {
      nodes = parse_number<long long>(entry.substr(open + 2, entry.size() - open - 3));
      entry = entry.substr(0, open);
    }
    auto const tasks = parse_number<long long>(entry);
    if (!tasks || !nodes || *tasks < 1 || *tasks > kMostRanks || *nodes < 1 || *nodes > kMostRanks)
      malformed();
    first += static_cast<int>(*nodes);
    if (first > kMostRanks) malformed();
    if (node < first) return static_cast<int>(*tasks);
  }
  refuse(text(name, "=\"", value, "\" and SLURM_NODEID=", node, " contradict each other: it names ", first,
              " nodes"));
}

// A batch script, salloc's shell and mpirun inside a job have SLURM_PROCID and SLURM_NTASKS too, but are no
// ranks: only srun gives a step an id of its own. Slurm's ids for its own steps (batch, extern, interactive)
// begin at 0xfffffff0.
bool inside_srun_step(Lookup const& lookup) {
  auto step = lookup("SLURM_STEP_ID");
  if (!step) step = lookup("SLURM_STEPID");
  if (!step) return false;
  auto const id = parse_number<long long>(*step);
  if (!id || *id < 0) refuse(text("SLURM_STEP_ID=\"", *step, "\": expected a whole number"));
  return *id < 0xfffffff0LL && all_set(lookup, {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_NUM_TASKS"});
}

// Where rank 0 serves the others.
void read_address(Lookup const& lookup, RankInfo& info) {
  info.address = *lookup("MASTER_ADDR");
  if (info.address.empty()) refuse("MASTER_ADDR=\"\": expected the address or the name of rank 0's host");
  info.port = number("MASTER_PORT", *lookup("MASTER_PORT"), 1, 65535);
  // torchrun's own agent listens at MASTER_PORT then.
  if (lookup("TORCHELASTIC_USE_AGENT_STORE") == "True") info.port = info.port % 65535 + 1;
}

// Slurm tells ranks of each other, but not MPI: rank 0 is on the first host of the step, at a port that each
// step has for itself as far as that can be.
void find_by_step(Lookup const& lookup, RankInfo& info) {
  bool const by_mpi = lookup("PMIX_NAMESPACE") && !lookup("DDP_MIN_RANKS");
  if (by_mpi || info.size == 1) return;
  if (all_set(lookup, {"MASTER_ADDR", "MASTER_PORT"})) return read_address(lookup, info);
  auto const hosts = lookup("SLURM_STEP_NODELIST");
  if (!hosts || hosts->empty()) return;
  info.address = first_of_nodelist(*hosts);
  // Another step may have the same port on that host: its ranks are not answered.
  info.secret =
      text("slurm/", lookup("SLURM_JOB_ID").value_or(""), "/", lookup("SLURM_STEP_ID").value_or(""));
  info.secret_is_known = true;
  constexpr std::uint64_t kFirstPort = 15'000;  // below those that a kernel gives to clients
  constexpr std::uint64_t kPorts = 14'000;
  info.port = static_cast<int>(kFirstPort + StableHash().add(info.secret).value() % kPorts);
}

RankInfo from_slurm(Lookup const& lookup) {
  RankInfo info;
  info.source = RankSource::slurm;
  read_pair(lookup, "SLURM_PROCID", "SLURM_NTASKS", info.rank, info.size);
  int const in_step = number("SLURM_STEP_NUM_TASKS", *lookup("SLURM_STEP_NUM_TASKS"), 1, kMostRanks);
  if (in_step != info.size) {
    refuse(text("SLURM_NTASKS=", info.size, " and SLURM_STEP_NUM_TASKS=", in_step,
                " contradict each other: is "
                "SLURM_NTASKS set by hand?"));
  }
  take_for_one_host(info);
  char const* const tasks_name =
      lookup("SLURM_STEP_TASKS_PER_NODE") ? "SLURM_STEP_TASKS_PER_NODE" : "SLURM_TASKS_PER_NODE";
  if (all_set(lookup, {"SLURM_LOCALID", "SLURM_NODEID", tasks_name})) {
    int const node = number("SLURM_NODEID", *lookup("SLURM_NODEID"), 0, kMostRanks);
    info.local_size = tasks_on_node(tasks_name, *lookup(tasks_name), node);
    info.local_rank = LocalRank{number("SLURM_LOCALID", *lookup("SLURM_LOCALID"), 0, info.local_size - 1)};
    info.local_known = true;
  }
  if (auto const job = lookup("SLURM_JOB_ID")) info.job_id = "slurm-" + *job;
  find_by_step(lookup, info);
  return info;
}

// Reads the rank only: the process manager tells MPI the rest, through PMIx.
RankInfo from_pmix(Lookup const& lookup) {
  RankInfo info;
  info.source = RankSource::pmix;
  info.rank = Rank{number("PMIX_RANK", *lookup("PMIX_RANK"), 0, kMostRanks)};
  info.size = 0;
  take_for_one_host(info);
  return info;
}

// By hand, by PyTorchJob, or by whatever else sets what torchrun does.
RankInfo from_address(Lookup const& lookup) {
  RankInfo info = read(lookup, kAddress);
  read_address(lookup, info);
  return info;
}

RankInfo place(Lookup const& lookup) {
  if (auto control = lookup("DDP_CONTROL")) return from_launcher(lookup, std::move(*control));
  if (all_set(lookup, {kOpenMpi.rank, kOpenMpi.size, kOpenMpi.local_rank, kOpenMpi.local_size})) {
    return read(lookup, kOpenMpi);
  }
  if (all_set(lookup, {kPmi.rank, kPmi.size})) return read(lookup, kPmi);
  if (inside_srun_step(lookup)) return from_slurm(lookup);
  if (all_set(lookup, {"PMIX_RANK", "PMIX_NAMESPACE"})) return from_pmix(lookup);
  if (all_set(lookup, {kLauncher.rank, kLauncher.size})) {
    RankInfo alone;
    read_pair(lookup, kLauncher.rank, kLauncher.size, alone.rank, alone.size);
    if (alone.size == 1) return alone;
    if (all_set(lookup, {"MASTER_ADDR", "MASTER_PORT"})) return from_address(lookup);
    refuse(text("RANK=", *lookup("RANK"), " and WORLD_SIZE=", *lookup("WORLD_SIZE"),
                " are set, but not MASTER_ADDR and MASTER_PORT, by which these ranks would find each other. "
                "Set both, to where rank 0 runs and to a free port there, or start the program with one of:\n"
                "  ddp-launch --cpus N -- program arguments...\n"
                "  mpirun -np N program arguments...\n"
                "  srun -n N program arguments...\n"
                "or unset RANK and WORLD_SIZE to run it alone"));
  }
  return {};
}

// Whether rank 0's server lets the others go on. Of ddp-launch's ranks its own options decide.
void read_min_ranks(Lookup const& lookup, RankInfo& info) {
  auto const given = lookup("DDP_MIN_RANKS");
  if (!given || info.source == RankSource::alone || info.source == RankSource::launcher) return;
  info.min_ranks = number("DDP_MIN_RANKS", *given, 1, kMostRanks);
  if (info.size != 1 && info.address.empty()) {
    refuse(
        text("DDP_MIN_RANKS=", *given, ": these ranks, started by ", to_string(info.source),
             ", find each other through MPI, which ends all of them when one is lost. To go on without it, "
             "start them with ddp-launch --survive, by MASTER_ADDR and MASTER_PORT, or with srun "
             "--kill-on-bad-exit=0; otherwise unset DDP_MIN_RANKS"));
  }
  if (info.min_ranks > info.size) {
    refuse(text("DDP_MIN_RANKS=", *given, ": the job has ", info.size, " ranks"));
  }
}

}  // namespace

char const* to_string(RankSource source) noexcept {
  static constexpr std::array kNames{
      "nobody (alone)",         "ddp-launch",  "mpirun (Open MPI)", "a PMI process manager (mpiexec)", "srun",
      "a PMIx process manager", "MASTER_ADDR", "the program"};
  static_assert(kNames.size() == static_cast<std::size_t>(RankSource::program) + 1);
  auto const index = static_cast<std::size_t>(source);
  return index < kNames.size() ? kNames[index] : "unknown";
}

RankInfo RankInfo::from_environment() {
  return from([](std::string const& name) -> std::optional<std::string> {
    char const* value = std::getenv(name.c_str());
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  });
}

RankInfo RankInfo::from(Lookup const& lookup) {
  RankInfo info = place(lookup);
  if (auto job = lookup("DDP_JOB_ID")) info.job_id = std::move(*job);
  if (auto const generation = lookup("DDP_GENERATION")) {
    info.generation = number("DDP_GENERATION", *generation, 0, kMostRanks);
  }
  if (auto const replacement = lookup("DDP_REPLACEMENT")) {
    info.replacement = number("DDP_REPLACEMENT", *replacement, 0, kMostRanks);
  }
  read_min_ranks(lookup, info);
  info.survives = info.min_ranks > 0 || lookup("DDP_SURVIVE") == "1";
  if (auto secret = lookup("DDP_JOB_SECRET")) {
    info.secret = std::move(*secret);
    info.secret_is_known = false;
  }
  if (info.secret.size() > kLongestSecret) {
    refuse(text("DDP_JOB_SECRET has ", info.secret.size(), " bytes, expected at most ", kLongestSecret));
  }
  if (auto file = lookup("DDP_ERROR_FILE")) info.error_file = absolute_path(*file);
  return info;
}

}  // namespace ddp
