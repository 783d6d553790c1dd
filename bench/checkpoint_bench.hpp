// How fast a checkpoint reaches the disk, and how long training waits for it.
#pragma once

#include "ddp/parallel/world.hpp"
#include "options.hpp"

namespace ddp::bench {

/// Times, by turns, in each round:
///
/// - a plain write: a file of the same bytes, from memory, in pieces of 8 MiB, and fsync (what `dd
/// conv=fsync` does);
/// - a checkpoint: Checkpoint::save() and wait() for tensors of that size on the world's device, with
/// hashing,
///   manifest and the removal of older checkpoints;
/// - the stall: the time that save() takes of it, in which training waits;
/// - the copy: the same tensors to host memory, alone: the floor of the stall.
///
/// Medians over rounds. Collective; rank 0 writes. In CheckpointBenchOptions::folder, which is emptied of
/// what it wrote at the end.
void run_checkpoint(World const& world, CheckpointBenchOptions const& options);

}  // namespace ddp::bench
