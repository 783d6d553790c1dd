// How long a step of DistributedDataParallel and its parts took.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "ddp/core/export.hpp"
#include "ddp/core/ids.hpp"

namespace DDP_EXPORT ddp {

/// A synchronised step on this rank, measured with Options::statistics. Times are those of the
/// streams, in milliseconds: on a GPU the GPU's. With parameters on several devices forward, backward and
/// exposed are those of the first one.
struct StepStatistics {
  /// Counted from 0, as in messages of errors; these begin anew when the World is rebuilt.
  std::uint64_t step = 0;
  /// From the end of the step before to the end of this one; nullopt if that step was not measured, and after
  /// a rebuild of the buckets.
  std::optional<double> step_ms{};
  /// From the last begin_forward(), or else from the end of the step before, until the first gradient was
  /// ready: the optimizer, what feeds data, micro-steps, the forward pass. nullopt if neither is known.
  std::optional<double> forward_ms{};
  double backward_ms = 0;  ///< from the first gradient until synchronize()
  /// How long buckets were on their way: each from when it was complete and the bucket before it was through,
  /// until its results were there. Includes copies, comm hooks, and waiting for ranks that come later.
  double communication_ms = 0;
  double exposed_ms = 0;     ///< from synchronize() until the compute stream went on
  Bytes bytes{};             ///< of gradients that this rank sent, in the type in which they travel
  std::size_t buckets = 0;   ///< of the plan
  std::size_t messages = 0;  ///< Reducer::messages()
  int rebuilds = 0;          ///< Reducer::rebuilds(), before this step's end
  /// Parameters in the order in which gradient_ready() completed them, or no_gradient() was called for them.
  std::vector<std::size_t> order;
  /// By rank, in this group: how long the rank that waited longest in this step waited for that one, summed
  /// over its buckets. Buckets end on all ranks at once, so a rank that comes later communicates for less
  /// time. Empty where ranks did not tell each other in time.
  std::vector<double> late_ms;
};

}  // namespace ddp
