// How long an all-reduce takes, beside what the memory allows, and beside the plain library.
#pragma once

#include "ddp/parallel/world.hpp"
#include "options.hpp"

namespace ddp::bench {

/// Times in-place sums of f32 in memory from Communicator::allocate(), for each size of the sweep.
/// Collective. Rank 0 prints, and writes the JSON file.
///
/// A time is that of many operations enqueued one behind another, between two events on their stream, divided
/// by their number. A round times each contender once, in turns first and last (A B B A); a time is that of
/// the slowest rank, and the median over rounds is reported. Before and after the rounds the sum is compared
/// with the exact one (small integers) and its bits are compared between ranks. False if any rank found a
/// wrong sum.
///
/// CPU ranks: beside each size stands the floor: the time of copying the same bytes with memcpy as often as
/// the algorithm must, by all ranks at once. For n ranks and B bytes the two-shot algorithm has each rank
/// reduce one part of B/n bytes: it reads that part from the n ranks' memory, n · B/n = B bytes, and writes
/// the result into the n ranks' memory, again n · B/n = B bytes. A memcpy of B bytes reads B and writes B. So
/// the floor is one memcpy of B bytes per rank, for every n; it is taken between two buffers of the same kind
/// of memory.
///
/// GPU ranks: beside each size stands ncclAllReduce itself, on a communicator of its own: the same buffer,
/// the same stream, which is one of the priority that gradients travel with. Up to 1 MiB also what the
/// host pays for one call, a hundred of them into an empty stream.
[[nodiscard]] bool run_all_reduce(World const& world, AllReduceOptions const& options);

}  // namespace ddp::bench
