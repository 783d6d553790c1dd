// How long an all-reduce takes, beside what the memory allows.
#pragma once

#include "ddp/parallel/world.hpp"
#include "options.hpp"

namespace ddp::bench {

/// Times in-place sums of f32 in memory from Communicator::allocate(), on the world's stream, for each size
/// of the sweep. Collective. Rank 0 prints, and writes the JSON file.
///
/// Beside each size stands the floor: the time of copying the same bytes with memcpy as often as the
/// algorithm must, by all ranks at once, in the same rounds. For n ranks and B bytes the two-shot algorithm
/// has each rank reduce one part of B/n bytes: it reads that part from the n ranks' memory, n · B/n = B
/// bytes, and writes the result into the n ranks' memory, again n · B/n = B bytes. A memcpy of B bytes reads
/// B and writes B. So the floor is one memcpy of B bytes per rank, for every n; it is taken between two
/// buffers of the same kind of memory.
///
/// A round times both, in turns first (A B B A); a time is that of the slowest rank, and the median over
/// rounds is reported. Before and after the rounds the sum is compared with the exact one (small integers)
/// and its bits are compared between ranks. False if any rank found a wrong sum.
[[nodiscard]] bool run_all_reduce(World const& world, AllReduceOptions const& options);

}  // namespace ddp::bench
