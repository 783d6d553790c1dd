// The ranks of this host: on which device and on which cores each is (L1, L2, L11).
#pragma once

#include <span>
#include <string>
#include <vector>

#include "ddp/core/device.hpp"
#include "launcher/options/options.hpp"
#include "launcher/plan/gpu_choice.hpp"
#include "launcher/plan/machine.hpp"

namespace ddp::launcher {

struct PlannedRank {
  Rank rank;
  Device device;               ///< what it binds: cpu:0, or the logical GPU of its number, or its only one
  GpuId gpu = {};              ///< empty for CPU ranks
  std::string gpu_name = {};   ///< "NVIDIA H200"
  std::vector<int> cpus = {};  ///< that it is to keep to; empty: all that are allowed
};

/// Whether each rank of a job on these GPUs sees its own only: a process can use one MIG instance only (L2).
[[nodiscard]] bool one_gpu_each(std::span<GpuId const> gpus);

/// Options::ranks_per_device on each GPU of choose_gpus(); without any, CPU ranks. Throws ExitError(64) for
/// options that do not fit the ranks that result.
[[nodiscard]] std::vector<PlannedRank> lay_out_ranks(Options const& options, Machine const& machine,
                                                     GpuChoice const& choice);

}  // namespace ddp::launcher
