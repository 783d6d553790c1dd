// How much of the communication a backward pass hides.
#pragma once

#include "ddp/parallel/world.hpp"
#include "options.hpp"

namespace ddp::bench {

/// Times the backward pass of a GemmChain through DistributedDataParallel, gradients in its arena, on the
/// world's streams. Collective. Rank 0 prints, and writes the JSON file. Four times, all between two events
/// on the compute stream (OverlapOptions::comm_sms divides the GPU, for messages and for overlapped
/// products):
///
/// - backward alone: the products, with the whole GPU; nothing is marked;
/// - communication alone: every gradient is marked at once, nothing is computed;
/// - a step, overlapped: each gradient is marked when its product is enqueued; synchronize();
/// - a step, one by one: the products with the whole GPU, then the same marks in the same order;
///   synchronize().
///
/// Without OverlapOptions::rows the number of rows is chosen first, so that the two alone take about as long:
/// then an overlapped step could at best take as long as one of them, and one by one takes their sum. A round
/// times each a few steps long, in turns first to last and last to first; the slowest rank counts, and the
/// median over rounds is reported. Before and after, the gradients of both kinds of step are compared, bit by
/// bit, with each other and between ranks: false if they differ anywhere.
///
/// With a trace, some more steps follow, now with a forward pass, and only they are in the timeline.
[[nodiscard]] bool run_overlap(World const& world, OverlapOptions const& options);

}  // namespace ddp::bench
