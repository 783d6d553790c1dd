// A training step in one process over several devices, beside the same in one process each.
#pragma once

#include "options.hpp"

namespace ddp::bench {

/// Started alone: steps of DataParallel over all GPUs, or over virtual CPU devices. Inputs and labels lie on
/// the first device, and each step begins with splitting them; the loss is computed on the replicas, and the
/// optimizer steps the module's own weights. A measurement is DataParallelBenchOptions::steps steps, from a
/// first device that is idle to one that is idle again; the median over rounds is reported. With several
/// devices DataParallelModule::refresh() and a plain broadcast of as many bytes, through a communicator of
/// the same kind over the same devices, take turns.
///
/// Under a launcher: the same steps of the same network through DistributedDataParallel, every rank with
/// inputs of its own. Collective; rank 0 prints; the slowest rank counts.
void run_data_parallel(DataParallelBenchOptions const& options);

}  // namespace ddp::bench
