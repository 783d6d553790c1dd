// --nproc-per-node, in the words of --cpus and --gpus.
#pragma once

#include "launcher/options/options.hpp"
#include "launcher/plan/machine.hpp"

namespace ddp::launcher {

/// `options` with the ranks of this host named: of GPUs where any is visible, otherwise of the CPU. Throws
/// ExitError(69) for more ranks than visible GPUs, and for a driver that cannot list them.
[[nodiscard]] Options with_named_ranks(Options options, Machine const& machine);

}  // namespace ddp::launcher
