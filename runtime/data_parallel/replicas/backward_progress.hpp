// Which gradients of a replica are complete, so that they travel while the backward pass still runs.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "ddp/device/event.hpp"
#include "reducer/coalesced_tensors.hpp"

namespace ddp {

/// Messages that travel together.
struct MessageBucket {
  std::vector<std::size_t> messages;
  bool packed = false;  ///< what small tensors share
};

/// As large as DistributedDataParallel's, and not so many that they fill a queue of the GPU.
[[nodiscard]] Bytes bucket_bytes(FlatLayout const& layout);

/// All messages with elements in the order in which a backward pass completes them: the last tensors first,
/// in buckets of at least `bytes`; then, in one, those that small tensors share, which are complete at the
/// end.
struct BackwardPlan {
  BackwardPlan(FlatLayout const& layout, Bytes bytes);

  std::vector<MessageBucket> buckets;
  /// By parameter; none for those without elements, and for small ones, which wait for the end.
  std::vector<std::optional<std::size_t>> bucket_of;
  std::vector<std::size_t> parameters_in;  ///< by bucket
};

/// Of one replica; what ReadyTracker is to a Reducer, which starts messages itself. One thread at a time.
class BackwardProgress {
 public:
  /// On streams of `device`.
  BackwardProgress(std::shared_ptr<BackwardPlan const> plan, Device device);

  /// No gradient is ready.
  void begin();
  /// The gradient of `parameter`, one of the plan's, is complete in the order of `stream`. Said again, it
  /// counts from then on.
  void ready(std::size_t parameter, Stream& stream);
  /// So are all that nobody spoke of, and what small tensors share.
  void end(Stream& stream);

  /// Behind end(): work enqueued on `messages` from now on comes behind all gradients of the bucket.
  void block(std::size_t bucket, Stream& messages) { complete_[bucket].block(messages); }

 private:
  std::shared_ptr<BackwardPlan const> plan_;
  std::vector<Event> complete_;       // by bucket
  std::vector<std::size_t> missing_;  // by bucket: parameters that are not ready
  std::vector<bool> ready_;           // by parameter
};

}  // namespace ddp
