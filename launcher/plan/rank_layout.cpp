#include "launcher/plan/rank_layout.hpp"

#include <algorithm>

#include "ddp/core/text.hpp"
#include "launcher/process/exit_code.hpp"

namespace ddp::launcher {
namespace {

std::vector<PlannedRank> ranks_on(std::span<GpuId const> gpus, int each, Machine const& machine) {
  if (gpus.size() * static_cast<std::size_t>(each) > kMaxRanks) {
    throw ExitError(exit_code::kUsage, text("--virtual ", each, " on ", gpus.size(), " GPUs are more than ",
                                            kMaxRanks, " ranks"));
  }
  std::vector<PlannedRank> ranks;
  for (GpuId const& gpu : gpus) {
    for (int slice = 0; slice < each; ++slice) {
      int const r = static_cast<int>(ranks.size());
      Device const device{DeviceKind::cuda, DeviceIndex{one_gpu_each(gpus) ? 0 : r}};
      ranks.push_back({Rank{r}, device, gpu, find_gpu(machine.gpus, gpu).value().gpu->name});
    }
  }
  return ranks;
}

void bind_to_cores(std::vector<PlannedRank>& ranks, Machine const& machine) {
  std::vector<CoreDemand> demands;
  for (PlannedRank const& rank : ranks) {
    auto const found = find_gpu(machine.gpus, rank.gpu);
    demands.push_back({found.has_value(), found ? machine.node_of(*found->gpu) : std::nullopt});
  }
  auto shares = share_cores(machine.cpus, demands);
  for (std::size_t r = 0; r < shares.size(); ++r) ranks[r].cpus = std::move(shares[r]);
}

}  // namespace

bool one_gpu_each(std::span<GpuId const> gpus) { return std::ranges::any_of(gpus, &GpuId::is_mig); }

std::vector<PlannedRank> lay_out_ranks(Options const& options, Machine const& machine,
                                       GpuChoice const& choice) {
  auto ranks = ranks_on(choice.gpus, options.ranks_per_device, machine);
  if (choice.gpus.empty()) {
    for (Rank const rank : all_ranks(choice.cpu_ranks)) ranks.push_back({rank, Device{}});
  }
  if (options.only_rank && options.only_rank->index() >= ranks.size()) {
    throw ExitError(exit_code::kUsage,
                    text("--only-rank ", *options.only_rank, ": expected a rank from 0 to ", ranks.size() - 1,
                         ", since ", ranks.size(), " are started"));
  }
  if (options.affinity) bind_to_cores(ranks, machine);
  return ranks;
}

}  // namespace ddp::launcher
