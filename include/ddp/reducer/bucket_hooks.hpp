// What a program may do with a bucket of gradients: reduce it in its own way, and use the result at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "ddp/comm/communicator.hpp"
#include "ddp/core/export.hpp"
#include "ddp/core/tensor.hpp"
#include "ddp/device/stream.hpp"
#include "ddp/reducer/bucket_plan.hpp"
#include "ddp/reducer/parameter.hpp"

namespace DDP_EXPORT ddp {

/// One bucket of one step, whose gradients of this rank are written by the work that is enqueued on `stream`.
struct GradientBucket {
  std::size_t index = 0;  ///< in the order in which buckets are sent, which is the same on every rank
  std::size_t count = 0;  ///< buckets in this step
  /// The gradients, one-dimensional: one run, or several with GradientStorage::in_place. Of
  /// Options::reduce_dtype where that is given. Between parameters there may be elements that mean
  /// nothing.
  std::span<TensorView const> gradients;
  /// Which elements are of which parameter, by index into `parameters`. Offsets are those of one run.
  std::span<BucketSlice const> slices;
  std::span<Parameter const> parameters;  ///< all of the model
  ReduceOp op;                            ///< what would be done without a hook: average, sum, weighted sum
  Communicator& communicator;             ///< of the ranks that train together, for this device
  Stream& stream;                         ///< where everything is enqueued
};

/// Reduces buckets in the program's own way: compressed, in two levels, or not at all in some steps.
struct CommHook {
  std::string name;  ///< equal on every rank; errors show it
  /// Enqueues on GradientBucket::stream what leaves the result in GradientBucket::gradients. Every rank makes
  /// the same calls of the bucket's communicator in the same order, and of no other one. Called once for each
  /// bucket, in order, by the thread that completes the bucket, in gradient_ready() or synchronize(); what it
  /// throws ends the step on every rank. It must not call the DistributedDataParallel, nor wait for a stream:
  /// if it does not return, the other ranks name this one when their timeout is over.
  std::function<void(GradientBucket const&)> reduce;
};

/// A bucket of one step whose results are written by the work that comes before on `stream`.
struct ReducedBucket {
  std::size_t index = 0;                 ///< as in GradientBucket
  std::size_t count = 0;                 ///< as there
  std::span<BucketSlice const> slices;   ///< which elements of which parameters have their results now
  std::span<std::uint8_t const> marked;  ///< by parameter: 1 if this rank has marked it in this step
  Stream& stream;                        ///< where the update is enqueued; on a CPU a HostStream
};

/// Enqueues on ReducedBucket::stream what a program does with the results, as an optimizer's update of these
/// parameters. Called once for each bucket, in order, as CommHook::reduce is and with its rules.
using BucketReady = std::function<void(ReducedBucket const&)>;

}  // namespace ddp
