#include "launcher/mpirun/mpi_plan.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <set>
#include <string_view>

#include "bootstrap/slurm_hosts.hpp"
#include "ddp/core/text.hpp"
#include "launcher/mpirun/mpi_shim.hpp"

namespace ddp::launcher {
namespace {

constexpr char const* kTransports = "OMPI_MCA_btl";  // two transports listen on every interface
constexpr char const* kPreload = "LD_PRELOAD";
constexpr char const* kVisibleGpus = "CUDA_VISIBLE_DEVICES=";
// How PMIx passes facts about the job on to ranks. Its shared memory ("shmem", PMIx 5) stays behind as files
// when a job is aborted; "hash" makes none.
constexpr char const* kJobFacts = "PMIX_MCA_gds";

/// The value of the variable `name` in `environment`, "NAME=value" each.
std::optional<std::string> value_of(std::string const& name, std::span<std::string const> environment) {
  for (std::string const& entry : environment) {
    if (entry.starts_with(name + "=")) return entry.substr(name.size() + 1);
  }
  return std::nullopt;
}

/// Whether it is a CUDA_VISIBLE_DEVICES that names GPUs: on other hosts they have other numbers and UUIDs.
bool is_of_one_host(std::string const& entry) {
  return entry.starts_with(kVisibleGpus) && entry.size() > std::string_view(kVisibleGpus).size();
}

/// Refuses, or warns of, names of GPUs that are valid on this host only.
void judge_gpus_of_several_hosts(Options const& options, std::span<std::string const> environment,
                                 std::vector<std::string>& warnings) {
  if (options.gpus && options.gpus->find('-') != std::string::npos) {
    refuse_options(
        text("--gpus ", *options.gpus,
             ": a UUID names a GPU of one host; for several hosts give indices, which count on each"));
  }
  auto const given = std::ranges::find_if(environment, is_of_one_host);
  bool const asked =
      std::ranges::find(options.exports, "CUDA_VISIBLE_DEVICES", &Export::name) != options.exports.end();
  if (given == environment.end() || options.cpus || asked) return;
  warnings.push_back(text(*given,
                          " holds on this host only; ranks of other hosts see all of their GPUs. --gpus LIST "
                          "chooses on each host"));
}

std::string host_list(std::vector<Host> const& hosts) {
  std::vector<std::string> entries;
  for (Host const& host : hosts) entries.push_back(text(host.name, ":", host.slots));
  return join(entries, ",");
}

// The ranks of each host by --cpus or --gpus. nullopt without these and for all GPUs: then the slots count.
std::optional<int> ranks_per_host(Options const& options) {
  if (options.cpus) return options.cpus;
  if (options.per_node == PerNode::count) return options.ranks_per_node;
  if (!options.gpus || *options.gpus == "all") return std::nullopt;
  auto const entries = std::count(options.gpus->begin(), options.gpus->end(), ',') + 1;
  return static_cast<int>(entries) * options.ranks_per_device;
}

// The options that each host's shims apply to their own host.
std::vector<std::string> options_of_a_host(Options const& options) {
  std::vector<std::string> words;
  if (options.cpus) words.insert(words.end(), {"--cpus", text(*options.cpus)});
  if (options.gpus) words.insert(words.end(), {"--gpus", *options.gpus});
  if (options.ranks_per_device > 1) {
    words.insert(words.end(), {"--virtual", text(options.ranks_per_device)});
  }
  if (!options.affinity) words.emplace_back("--no-affinity");
  if (!options.line_buffering) words.emplace_back("--no-line-buffering");
  if (options.max_restarts > 0) {
    words.insert(words.end(), {"--max-restarts", text(options.max_restarts)});
  }
  return words;
}

// The port is one of 2,000, by the job's id, since only the first host knows which of its ports are free.
MeetingPoint meeting_point(Options const& options, std::string const& job_id, std::vector<Host> const& hosts,
                           MpiSurroundings const& surroundings) {
  constexpr std::size_t kFirstPort = 29500;  // torchrun's
  constexpr std::size_t kPorts = 2000;
  MeetingPoint point;
  for (Host const& host : hosts) point.slots.push_back(host.slots);
  if (hosts.empty()) point.slots.assign(static_cast<std::size_t>(*options.nnodes), *ranks_per_host(options));
  point.address = "127.0.0.1";
  if (hosts.size() > 1) point.address = hosts[0].name;
  if (hosts.empty()) {
    auto const list = value_of("SLURM_JOB_NODELIST", surroundings.environment);
    if (list && !first_of_nodelist(*list).empty()) point.address = first_of_nodelist(*list);
  }
  point.port = value_of("MASTER_PORT", surroundings.environment)
                   .value_or(text(kFirstPort + std::hash<std::string>{}(job_id) % kPorts));
  return point;
}

}  // namespace

std::vector<Host> chosen_hosts(Options const& options, MpiSurroundings const& surroundings) {
  if (options.per_node == PerNode::cores) {
    refuse_options("--nproc-per-node cpu: how many cores other hosts have is not known here; give a number");
  }
  std::vector<Host> hosts;
  if (options.hostfile) {
    hosts = read_hostfile(*options.hostfile);
  } else if (options.host) {
    hosts = parse_host_list(*options.host);
  } else if (!surroundings.allocation_knows_hosts) {
    if (options.nnodes.value_or(1) > 1) {
      refuse_options(
          text("--nnodes ", *options.nnodes,
               " needs hosts: --hostfile FILE, --host LIST, or a job of Slurm or PBS that has them"));
    }
    hosts = {{"localhost", surroundings.ranks_here}};
  } else if (!options.nnodes || !ranks_per_host(options)) {
    refuse_options(
        "inside a job of Slurm or PBS, say how many hosts and ranks on each: --nnodes N with --cpus N or "
        "--gpus LIST, or with --nproc-per-node N");
  }
  if (options.nnodes && !hosts.empty()) {
    auto const wanted = static_cast<std::size_t>(*options.nnodes);
    if (hosts.size() < wanted) {
      refuse_options(text("--nnodes ", wanted, ": only ", hosts.size(),
                          hosts.size() == 1 ? " host is" : " hosts are", " named"));
    }
    hosts.resize(wanted);
  }
  for (Host& host : hosts) host.slots = ranks_per_host(options).value_or(host.slots);
  return hosts;
}

std::vector<std::string> exported_names(std::span<std::string const> environment,
                                        std::span<Export const> asked) {
  static constexpr std::array<std::string_view, 4> kPrefixes{"NCCL_", "CUDA_", "OMP_", "DDP_"};
  std::set<std::string> names{"DDP_JOB_ID", "DDP_GENERATION", "DDP_INVITATION",
                              kErrorDirectory};  // this function sets them
  for (Export const& each : asked) names.insert(each.name);
  for (std::string const& entry : environment) {
    std::string const name = entry.substr(0, entry.find('='));
    bool const wanted =
        name == "LD_LIBRARY_PATH" ||
        std::ranges::any_of(kPrefixes, [&](std::string_view prefix) { return name.starts_with(prefix); });
    if (wanted && !is_of_one_job(name) && !is_of_one_host(entry)) names.insert(name);
  }
  return {names.begin(), names.end()};
}

Plan make_mpi_plan(Options const& options, Machine const& machine, std::string const& job_id,
                   std::string const& program, std::vector<Host> const& hosts,
                   MpiSurroundings const& surroundings) {
  auto const each = ranks_per_host(options);
  int ranks = hosts.empty() ? *options.nnodes * *each : 0;
  for (Host const& host : hosts) ranks += host.slots;
  if (options.only_rank && options.only_rank->value() >= ranks) {
    refuse_options(text("--only-rank ", *options.only_rank, ": expected a rank from 0 to ", ranks - 1));
  }
  Plan plan;
  plan.job_id = job_id;
  plan.host = machine.host;
  plan.program = surroundings.mpirun;
  plan.allowed_cores = machine.allowed_cores;
  plan.mpi_ranks = ranks;
  plan.all_here = are_all_here(hosts, machine.host);
  plan.max_restarts = options.max_restarts;
  if (hosts.size() > 1) judge_gpus_of_several_hosts(options, surroundings.environment, plan.warnings);
  plan.ranks.push_back({Rank{0}, Device{}, {}, {}});
  if (options.log_files) plan.log_dir = options.log_dir.value_or("ddp-logs/" + job_id);

  auto& words = plan.command;
  words = {surroundings.mpirun, "--bind-to", "none", "--tag-output", "-np", text(ranks)};
  if (surroundings.is_root) words.emplace_back("--allow-run-as-root");
  if (!hosts.empty()) words.insert(words.end(), {"--host", host_list(hosts)});
  if (each) {
    words.insert(words.end(), {"--map-by", text("ppr:", *each, ":node"), "--oversubscribe"});
  }
  for (std::string const& name : exported_names(surroundings.environment, options.exports))
    words.insert(words.end(), {"-x", name});
  auto const shim = shim_command(surroundings.launcher, meeting_point(options, job_id, hosts, surroundings),
                                 program, options_of_a_host(options));
  words.insert(words.end(), shim.begin(), shim.end());
  for (std::string const& word : options.command) words.push_back(kArgumentMark + word);
  return plan;
}

bool are_all_here(std::span<Host const> hosts, std::string const& here) {
  return !hosts.empty() && std::ranges::all_of(hosts, [&](Host const& host) {
    return host.name == "localhost" || host.name == "127.0.0.1" || host.name == here;
  });
}

Variables mpirun_settings(std::span<std::string const> environment, std::string const& files) {
  Variables settings;
  // mpirun accepts only one setting for where its files are. Each version reads its own.
  static constexpr std::array<char const*, 2> kTmpdirs{"OMPI_MCA_orte_tmpdir_base",
                                                       "PRTE_MCA_prte_tmpdir_base"};
  auto const is_set = [&](char const* name) { return value_of(name, environment).has_value(); };
  if (std::ranges::none_of(kTmpdirs, is_set) && std::ranges::none_of(kMpirunFiles, is_set)) {
    for (char const* const name : kMpirunFiles) settings.emplace_back(name, files);
  }
  if (!value_of(kJobFacts, environment)) settings.emplace_back(kJobFacts, "hash");
  return settings;
}

Variables loopback_settings(std::span<std::string const> environment, std::string const& library) {
  Variables settings;
  if (!value_of(kTransports, environment)) settings.emplace_back(kTransports, "^tcp,ofi");
  if (!library.empty()) {
    auto const own = value_of(kPreload, environment);
    settings.emplace_back(kPreload, own && !own->empty() ? text(library, ":", *own) : library);
  }
  return settings;
}

std::string users_preload(std::string const& preload) {
  std::size_t const end = preload.find(':');
  if (!std::string_view(preload).substr(0, end).ends_with(kLoopbackLibrary)) return preload;
  return end == std::string::npos ? std::string() : preload.substr(end + 1);
}

}  // namespace ddp::launcher
