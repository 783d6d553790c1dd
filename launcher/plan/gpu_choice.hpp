// Which GPUs the ranks get: a pure function of the options and the machine.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "launcher/options/options.hpp"
#include "launcher/plan/machine.hpp"

namespace ddp::launcher {

/// With less free memory, a rank's context and NCCL's buffers do not fit.
inline constexpr Bytes kLeastFreeMemory = 512_MiB;

struct GpuChoice {
  std::vector<GpuId> gpus;            ///< of Machine::gpus, in logical order; empty: CPU ranks
  int cpu_ranks = 1;                  ///< how many, if so
  std::vector<std::string> warnings;  ///< for the user
};

/// The GPUs of --gpus, as many as --nproc-per-node says, or all that are visible; of a GPU in MIG mode its
/// instances. Throws ExitError(64) and ExitError(69) as select_gpus() does, and ExitError(69) where fewer are
/// visible than --nproc-per-node says, or the driver cannot list them.
[[nodiscard]] GpuChoice named_gpus(Options const& options, Machine const& machine);

/// As named_gpus(), and throws ExitError(75) for a GPU with less than kLeastFreeMemory.
[[nodiscard]] GpuChoice choose_gpus(Options const& options, Machine const& machine);

/// How long a job waits for memory of GPUs. The driver takes a moment to free the memory of a process that
/// has ended: before a restart an old rank, before the first start perhaps a process of somebody else.
inline constexpr std::chrono::seconds kTimeoutAtStart{3};
inline constexpr std::chrono::seconds kTimeoutAtRestart{20};
/// Calls until it throws no ExitError(75), for at most `timeout`; lets other exceptions and the last pass.
void await_free_gpus(std::function<void()> const& call, std::chrono::milliseconds timeout);

/// "97.2 GiB of 140.4 GiB free", or "memory unknown".
[[nodiscard]] std::string memory_text(std::optional<MemoryInfo> const& memory);

}  // namespace ddp::launcher
