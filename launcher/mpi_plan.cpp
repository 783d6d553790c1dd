#include "launcher/mpi_plan.hpp"

#include <algorithm>
#include <array>
#include <numeric>
#include <string_view>

#include "ddp/core/text.hpp"
#include "launcher/exit_code.hpp"
#include "launcher/mpi_shim.hpp"

namespace ddp::launcher {
namespace {

[[noreturn]] void refuse(std::string const& message) {
  throw ExitError(exit_code::kUsage, message + "\n  try: ddp-launch --help");
}

std::string host_list(std::vector<Host> const& hosts) {
  std::vector<std::string> entries;
  for (Host const& host : hosts) entries.push_back(text(host.name, ":", host.slots));
  return join(entries, ",");
}

}  // namespace

std::vector<Host> chosen_hosts(Options const& options, MpiSurroundings const& surroundings) {
  std::vector<Host> hosts;
  if (options.hostfile) {
    hosts = read_hostfile(*options.hostfile);
  } else if (options.host) {
    hosts = parse_host_list(*options.host);
  } else if (!surroundings.allocation_knows_hosts) {
    if (options.nnodes.value_or(1) > 1) {
      refuse(text("--nnodes ", *options.nnodes,
                  " needs hosts: --hostfile FILE, --host LIST, or a job of Slurm or PBS that has them"));
    }
    hosts = {{"localhost", 1}};
  } else if (!options.nnodes || !options.cpus) {
    refuse("inside a job of Slurm or PBS, say how many hosts and ranks on each: --nnodes N --cpus N");
  }
  if (options.nnodes && !hosts.empty()) {
    auto const wanted = static_cast<std::size_t>(*options.nnodes);
    if (hosts.size() < wanted) {
      refuse(text("--nnodes ", wanted, ": only ", hosts.size(), hosts.size() == 1 ? " host is" : " hosts are",
                  " named"));
    }
    hosts.resize(wanted);
  }
  for (Host& host : hosts) host.slots = options.cpus.value_or(host.slots);
  return hosts;
}

std::vector<std::string> exported_names(std::span<std::string const> environment) {
  static constexpr std::array<std::string_view, 4> kPrefixes{"NCCL_", "CUDA_", "OMP_", "DDP_"};
  static constexpr std::array<std::string_view, 5> kOurs{"DDP_CONTROL", "DDP_ERROR_FILE", "DDP_TERMINAL",
                                                         "DDP_VIRTUAL_DEVICES", "DDP_GENERATION"};
  std::vector<std::string> names;
  for (std::string const& entry : environment) {
    std::string_view const name = std::string_view(entry).substr(0, entry.find('='));
    bool const wanted = name == "LD_LIBRARY_PATH" ||
                        std::any_of(kPrefixes.begin(), kPrefixes.end(),
                                    [&](std::string_view prefix) { return name.starts_with(prefix); });
    bool const ours = std::find(kOurs.begin(), kOurs.end(), name) != kOurs.end();
    if (wanted && !ours) names.emplace_back(name);
  }
  for (char const* set_here : {"DDP_JOB_ID", kErrorDirectory}) {
    if (std::find(names.begin(), names.end(), set_here) == names.end()) names.emplace_back(set_here);
  }
  std::sort(names.begin(), names.end());
  return names;
}

Plan make_mpi_plan(Options const& options, Machine const& machine, std::string const& job_id,
                   std::string const& program, std::vector<Host> const& hosts,
                   MpiSurroundings const& surroundings) {
  if (options.gpus || options.ranks_per_device > 1) {
    refuse(
        "--gpus and --virtual choose GPUs of this host; ranks that mpirun starts take those that "
        "CUDA_VISIBLE_DEVICES leaves on their own host, or none with --cpus N");
  }
  if (options.max_restarts > 0) {
    refuse("--max-restarts is of the local engine: it cannot tell yet whether ranks of other hosts are gone");
  }
  int const ranks = hosts.empty()
                        ? *options.nnodes * *options.cpus
                        : std::accumulate(hosts.begin(), hosts.end(), 0,
                                          [](int sum, Host const& host) { return sum + host.slots; });
  if (options.only_rank && options.only_rank->value() >= ranks) {
    refuse(text("--only-rank ", *options.only_rank, ": expected a rank from 0 to ", ranks - 1));
  }
  Plan plan;
  plan.job_id = job_id;
  plan.host = machine.host;
  plan.program = surroundings.mpirun;
  plan.allowed_cores = machine.allowed_cores;
  plan.mpi_ranks = ranks;
  plan.ranks.push_back({Rank{0}, Device{}, {}, {}});
  if (options.log_files) plan.log_dir = options.log_dir.value_or("ddp-logs/" + job_id);

  auto& words = plan.command;
  words = {surroundings.mpirun, "--bind-to", "none", "--tag-output", "-np", std::to_string(ranks)};
  if (surroundings.is_root) words.emplace_back("--allow-run-as-root");
  if (!hosts.empty()) words.insert(words.end(), {"--host", host_list(hosts)});
  if (options.cpus) {
    words.insert(words.end(), {"--map-by", text("ppr:", *options.cpus, ":node"), "--oversubscribe"});
  }
  for (std::string const& name : exported_names(surroundings.environment))
    words.insert(words.end(), {"-x", name});
  bool const one_host = hosts.size() == 1;
  auto const shim = shim_command(surroundings.launcher, options.cpus.has_value(),
                                 one_host || hosts.empty() ? "127.0.0.1" : hosts[0].name, program);
  words.insert(words.end(), shim.begin(), shim.end());
  for (std::string const& word : options.command) words.push_back(kArgumentMark + word);
  return plan;
}

}  // namespace ddp::launcher
