#include "launcher/plan/rank_environment.hpp"

#include <algorithm>
#include <array>

#include "launcher/mpirun/mpi_shim.hpp"
#include "launcher/plan/plan.hpp"

namespace ddp::launcher {

RankDefaults rank_defaults(std::span<PlannedRank const> ranks, int allowed_cores, Lookup const& lookup) {
  RankDefaults defaults;
  if (ranks.front().device.kind == DeviceKind::cuda) {
    // NCCL opens ports: between ranks of one host only on the loopback interface, and none for its
    // monitoring.
    for (auto const& [name, value] : {std::pair("NCCL_SOCKET_IFNAME", "lo"), {"NCCL_RAS_ENABLE", "0"}}) {
      if (!lookup(name)) defaults.nccl.emplace_back(name, value);
    }
  }
  if (!lookup("OMP_NUM_THREADS")) {
    defaults.omp_threads = std::max(1, allowed_cores / static_cast<int>(ranks.size()));
  }
  return defaults;
}

Variables place_variables(RankInfo const& place, MeetingPoint const& point, int max_restarts) {
  std::size_t host = 0;
  for (int end = point.slots[0]; place.rank.value() >= end && host + 1 < point.slots.size();) {
    end += point.slots[++host];
  }
  return {{"RANK", text(place.rank)},
          {"WORLD_SIZE", text(place.size)},
          {"LOCAL_RANK", text(place.local_rank)},
          {"LOCAL_WORLD_SIZE", text(place.local_size)},
          {"GROUP_RANK", text(host)},
          {"GROUP_WORLD_SIZE", text(point.slots.size())},
          {"MASTER_ADDR", point.address},
          {"MASTER_PORT", point.port},
          {"TORCHELASTIC_RUN_ID", place.job_id},
          {"TORCHELASTIC_RESTART_COUNT", text(place.generation)},
          {"TORCHELASTIC_MAX_RESTARTS", text(max_restarts)}};
}

Variables device_variables(Plan const& plan, PlannedRank const& rank) {
  std::vector<GpuId> gpus;
  for (PlannedRank const& each : plan.ranks) {
    if (gpus.empty() || gpus.back() != each.gpu) gpus.push_back(each.gpu);  // slices follow each other
  }
  bool const only_its_own = one_gpu_each(gpus);
  Variables variables{{"CUDA_VISIBLE_DEVICES", only_its_own ? rank.gpu.value : join(gpus, ",")}};
  if (plan.ranks_per_device > 1 && !only_its_own) {
    variables.emplace_back("DDP_VIRTUAL_DEVICES", text(plan.ranks_per_device));
  }
  append(variables, plan.defaults.nccl);
  if (plan.defaults.omp_threads) {
    variables.emplace_back("OMP_NUM_THREADS", text(*plan.defaults.omp_threads));
  }
  return variables;
}

Variables rank_environment(Plan const& plan, PlannedRank const& rank, JobFacts const& facts) {
  std::string const generation = text(plan.generation);
  if (plan.mpi_ranks) {  // the shims do the rest
    return {{"DDP_JOB_ID", plan.job_id},
            {"DDP_GENERATION", generation},
            {kErrorDirectory, facts.error_dir},
            {"DDP_INVITATION", facts.control}};
  }
  RankInfo place;
  place.rank = rank.rank;
  place.local_rank = LocalRank{rank.rank.value()};
  place.size = place.local_size = plan.world_size();
  place.job_id = plan.job_id;
  place.generation = plan.generation;
  auto variables = place_variables(place, {"127.0.0.1", facts.master_port, {place.size}}, plan.max_restarts);
  append(variables, {{"TORCHELASTIC_ERROR_FILE", elastic_error_file(facts.error_dir, rank.rank)},
                     {"DDP_JOB_ID", plan.job_id},
                     {"DDP_GENERATION", generation},
                     {"DDP_CONTROL", facts.control},
                     {"DDP_ERROR_FILE", error_file(facts.error_dir, rank.rank)}});
  if (plan.min_ranks) variables.emplace_back("DDP_SURVIVE", "1");
  if (facts.replacement > 0) variables.emplace_back("DDP_REPLACEMENT", text(facts.replacement));
  if (!facts.flight.empty()) variables.emplace_back("DDP_FLIGHT", facts.flight);
  append(variables, device_variables(plan, rank));
  if (plan.shows_live_lines && rank.rank == 0) variables.emplace_back("DDP_TERMINAL", "1");
  append(variables, plan.window);
  append(variables, plan.line_buffering);
  if (!plan.line_buffering.empty()) variables.emplace_back("DDP_STDOUT", facts.out);
  return variables;
}

bool is_of_one_job(std::string_view name) {
  // With the first variable, PyTorch's rank 0 would wait for a store that only torchrun serves. The others
  // are chosen anew for each job.
  static constexpr std::array<std::string_view, 11> kForeign{"TORCHELASTIC_USE_AGENT_STORE",
                                                             "TORCHELASTIC_ERROR_FILE",
                                                             "DDP_STDOUT",
                                                             "DDP_TERMINAL",
                                                             "DDP_VIRTUAL_DEVICES",
                                                             "DDP_CONTROL",
                                                             "DDP_INVITATION",
                                                             "DDP_REPLACEMENT",
                                                             "DDP_SURVIVE",
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

}  // namespace ddp::launcher
