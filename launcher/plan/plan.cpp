#include "launcher/plan/plan.hpp"

#include <algorithm>
#include <array>

#include "core/ascii.hpp"
#include "ddp/core/text.hpp"
#include "launcher/mpirun/mpi_shim.hpp"
#include "launcher/plan/gpu_choice.hpp"
#include "launcher/process/exit_code.hpp"

namespace ddp::launcher {
namespace {

void add_gpu_ranks(Plan& plan, std::vector<GpuId> const& gpus, Machine const& machine) {
  plan.one_device_each = std::ranges::any_of(gpus, &GpuId::is_mig);
  for (GpuId const& gpu : gpus) {
    for (int slice = 0; slice < plan.ranks_per_device; ++slice) {
      int const r = static_cast<int>(plan.ranks.size());
      DeviceIndex const index{plan.one_device_each ? 0 : r};
      plan.ranks.push_back(
          {Rank{r}, Device{DeviceKind::cuda, index}, gpu, find_gpu(machine.gpus, gpu).value().gpu->name});
    }
  }
}

/// The list for every rank. With MIG each rank gets its own: a process can use one instance only (L2).
std::string visible_devices(Plan const& plan, PlannedRank const& rank) {
  if (plan.one_device_each) return rank.gpu.value;
  std::vector<GpuId> list;
  for (PlannedRank const& each : plan.ranks) {
    if (list.empty() || list.back() != each.gpu) list.push_back(each.gpu);  // slices follow each other
  }
  return join(list, ",");
}

/// NCCL opens ports: between ranks of one host only on the loopback interface, and none for its monitoring.
Variables nccl_defaults(Lookup const& lookup) {
  Variables defaults;
  if (!lookup("NCCL_SOCKET_IFNAME")) defaults.emplace_back("NCCL_SOCKET_IFNAME", "lo");
  if (!lookup("NCCL_RAS_ENABLE")) defaults.emplace_back("NCCL_RAS_ENABLE", "0");
  return defaults;
}

void bind_to_cores(Plan& plan, Machine const& machine) {
  std::vector<CoreDemand> demands;
  for (PlannedRank const& rank : plan.ranks) {
    auto const gpu = find_gpu(machine.gpus, rank.gpu);
    auto const node = gpu ? machine.gpu_nodes.find(gpu->gpu->index) : machine.gpu_nodes.end();
    demands.push_back(
        {gpu.has_value(), node == machine.gpu_nodes.end() ? std::nullopt : std::optional(node->second)});
  }
  auto shares = share_cores(machine.cpus, demands);
  for (std::size_t r = 0; r < shares.size(); ++r) plan.ranks[r].cpus = std::move(shares[r]);
}

/// For people: `word` as a shell would need it to read the same word again.
std::string quoted(std::string const& word) {
  auto const plain = [](char c) {
    return is_letter(c) || is_digit(c) || std::string_view("@%+=:,./-_").find(c) != std::string_view::npos;
  };
  if (!word.empty() && std::ranges::all_of(word, plain)) return word;
  std::string result = "'";
  for (char const c : word) result += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return result + "'";
}

}  // namespace

Plan make_plan(Options const& options, Machine const& machine, std::string const& job_id,
               std::string const& program, Lookup const& lookup) {
  Plan plan;
  plan.job_id = job_id;
  plan.host = machine.host;
  plan.program = program;
  plan.command = options.command;
  plan.allowed_cores = machine.allowed_cores;
  plan.max_restarts = options.max_restarts;

  auto [gpus, warnings] = choose_gpus(options, machine);
  plan.warnings = std::move(warnings);
  plan.ranks_per_device = options.ranks_per_device;
  if (!gpus.empty()) {
    if (gpus.size() * static_cast<std::size_t>(options.ranks_per_device) > kMaxRanks) {
      throw ExitError(exit_code::kUsage, text("--virtual ", options.ranks_per_device, " on ", gpus.size(),
                                              " GPUs are more than ", kMaxRanks, " ranks"));
    }
    add_gpu_ranks(plan, gpus, machine);
    plan.nccl_defaults = nccl_defaults(lookup);
  } else {
    // The CPU is one device: as many ranks share it as would share a GPU.
    int const usual =
        options.ranks_per_device > 1 ? options.ranks_per_device : std::clamp(machine.physical_cores, 1, 2);
    for (Rank const rank : all_ranks(options.cpus.value_or(usual))) plan.ranks.push_back({rank, Device{}});
  }
  int const size = static_cast<int>(plan.ranks.size());
  if (options.only_rank && options.only_rank->value() >= size) {
    throw ExitError(exit_code::kUsage,
                    text("--only-rank ", *options.only_rank, ": expected a rank from 0 to ", size - 1,
                         ", since ", size, " are started"));
  }
  if (options.affinity) bind_to_cores(plan, machine);
  if (!lookup("OMP_NUM_THREADS")) plan.omp_threads = std::max(1, machine.allowed_cores / size);
  if (options.log_files) plan.log_dir = options.log_dir.value_or("ddp-logs/" + job_id);
  return plan;
}

std::size_t descriptors_needed(int ranks, bool by_mpirun, bool log_files) noexcept {
  constexpr std::size_t kOwn = 24;  // measured: at most 20
  // Memory of the flight recorder; of ranks that are started here also two pipes, a pidfd and a connection.
  std::size_t const each = (by_mpirun ? 1 : 5) + (log_files ? 2 : 0);
  return kOwn + each * static_cast<std::size_t>(ranks);
}

std::string error_file(std::string const& error_dir, Rank rank) {
  return text(error_dir, "/rank", rank, ".error.json");
}

std::string elastic_error_file(std::string const& error_dir, Rank rank) {
  return text(error_dir, "/rank", rank, ".torchelastic.json");
}

std::string flight_link(std::string const& error_dir, Rank rank) {
  return text(error_dir, "/rank", rank, ".flight");
}

Variables device_environment(Plan const& plan, PlannedRank const& rank) {
  Variables variables{{"CUDA_VISIBLE_DEVICES", visible_devices(plan, rank)}};
  if (plan.ranks_per_device > 1 && !plan.one_device_each) {
    variables.emplace_back("DDP_VIRTUAL_DEVICES", text(plan.ranks_per_device));
  }
  append(variables, plan.nccl_defaults);
  if (plan.omp_threads) variables.emplace_back("OMP_NUM_THREADS", text(*plan.omp_threads));
  return variables;
}

Variables rank_environment(Plan const& plan, PlannedRank const& rank, JobFacts const& facts) {
  if (plan.mpi_ranks) {  // the shims do the rest
    return {{"DDP_JOB_ID", plan.job_id},
            {"DDP_GENERATION", text(plan.generation)},
            {kErrorDirectory, facts.error_dir}};
  }
  std::string const size = text(plan.ranks.size());
  std::string const number = text(rank.rank.value());
  Variables variables{
      {"RANK", number},
      {"WORLD_SIZE", size},
      {"LOCAL_RANK", number},
      {"LOCAL_WORLD_SIZE", size},
      {"GROUP_RANK", "0"},
      {"GROUP_WORLD_SIZE", "1"},
      {"MASTER_ADDR", "127.0.0.1"},
      {"MASTER_PORT", facts.master_port},
      {"TORCHELASTIC_RUN_ID", plan.job_id},
      {"TORCHELASTIC_RESTART_COUNT", text(plan.generation)},
      {"TORCHELASTIC_MAX_RESTARTS", text(plan.max_restarts)},
      {"TORCHELASTIC_ERROR_FILE", elastic_error_file(facts.error_dir, rank.rank)},
      {"DDP_JOB_ID", plan.job_id},
      {"DDP_GENERATION", text(plan.generation)},
      {"DDP_CONTROL", facts.control},
      {"DDP_ERROR_FILE", error_file(facts.error_dir, rank.rank)},
  };
  if (!facts.flight.empty()) variables.emplace_back("DDP_FLIGHT", facts.flight);
  append(variables, device_environment(plan, rank));
  if (plan.shows_live_lines && rank.rank == 0) variables.emplace_back("DDP_TERMINAL", "1");
  append(variables, plan.window);
  append(variables, plan.line_buffering);
  if (!plan.line_buffering.empty()) variables.emplace_back("DDP_STDOUT", facts.out);
  return variables;
}

bool is_of_one_job(std::string_view name) {
  // With the first, PyTorch's rank 0 would wait for a store that only torchrun serves; the others are decided
  // anew for each job.
  static constexpr std::array<std::string_view, 8> kForeign{"TORCHELASTIC_USE_AGENT_STORE",
                                                            "TORCHELASTIC_ERROR_FILE",
                                                            "DDP_STDOUT",
                                                            "DDP_TERMINAL",
                                                            "DDP_VIRTUAL_DEVICES",
                                                            "DDP_CONTROL",
                                                            "DDP_ERROR_FILE",
                                                            "DDP_FLIGHT"};
  return std::ranges::find(kForeign, name) != kForeign.end();
}

std::vector<std::string> merge_environment(std::span<std::string const> inherited, Variables const& changes) {
  std::vector<std::string> merged;
  merged.reserve(inherited.size() + changes.size());
  for (std::string const& entry : inherited) {
    std::string_view const name = std::string_view(entry).substr(0, entry.find('='));
    bool const changed = std::ranges::any_of(changes, [&](auto const& each) { return each.first == name; });
    if (!changed && !is_of_one_job(name)) merged.push_back(entry);
  }
  for (auto const& [name, value] : changes) merged.push_back(text(name, "=", value));
  return merged;
}

std::string make_job_id(std::string const& program, std::string const& date, long pid) {
  std::string name = program.substr(program.find_last_of('/') + 1);
  for (char& c : name) {
    bool const kept = is_letter(c) || is_digit(c) || c == '.' || c == '_' || c == '-';
    if (!kept) c = '_';
  }
  return text(name.substr(0, 64), "-", date, "-", pid);
}

std::string describe(Plan const& plan) {
  std::string command;
  for (std::string const& word : plan.command) command += " " + quoted(word);
  std::string const log_files = plan.log_dir.value_or("none");
  if (plan.mpi_ranks) {
    return text("job       ", plan.job_id, "\nengine    mpi: ", *plan.mpi_ranks, " ranks\nlog files ",
                log_files, "\ncommand  ", command, "\n");
  }
  std::string description =
      text("job       ", plan.job_id, "\nengine    local, on ", plan.host, "\ncommand  ", command,
           "\nprogram   ", plan.program, "\nlog files ", log_files, "\ncores     ", plan.allowed_cores,
           " allowed for ", plan.ranks.size(), " ranks; OMP_NUM_THREADS",
           plan.omp_threads ? text("=", *plan.omp_threads, " (it was unset)") : " as inherited", "\n");
  JobFacts const later{"<control directory>/control", "<control directory>", "<a free port>",
                       "<memory of ddp-launch>", "<the pipe>"};
  for (PlannedRank const& rank : plan.ranks) {
    description += text("rank ", rank.rank, ": ", rank.device,
                        rank.gpu_name.empty() ? std::string{} : text(" = ", rank.gpu_name, " ", rank.gpu),
                        rank.cpus.empty() ? std::string{} : ", cores " + cpu_list(rank.cpus), ", stdin ",
                        rank.rank == 0 ? "as inherited" : "/dev/null", "\n");
    for (auto const& [name, value] : rank_environment(plan, rank, later)) {
      description += text("  ", name, "=", value, "\n");
    }
  }
  return description;
}

}  // namespace ddp::launcher
