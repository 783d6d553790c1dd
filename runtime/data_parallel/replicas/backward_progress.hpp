// Which gradients of a replica are complete, so that they can be sent while the backward pass still runs.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "ddp/device/event.hpp"
#include "reducer/memory/coalesced_tensors.hpp"

namespace ddp {

/// Messages that travel together.
struct MessageBucket {
  std::vector<std::size_t> messages;
  bool packed = false;  ///< shared by small tensors
};

/// The size of buckets: that of DistributedDataParallel, or more where so many would fill a queue of the GPU.
[[nodiscard]] Bytes bucket_bytes(FlatLayout const& layout);

/// All messages with elements in the order in which a backward pass completes them: the last tensors first,
/// in buckets of at least `bytes`; then one bucket of those that small tensors share, which are complete only
/// at the end.
struct BackwardPlan {
  BackwardPlan(FlatLayout const& layout, Bytes bytes);

  std::vector<MessageBucket> buckets;
  /// By parameter; none for those without elements, and for small ones, which wait for the end.
  std::vector<std::optional<std::size_t>> bucket_of;
  std::vector<std::size_t> parameters_in;  ///< by bucket
};

/// The progress of one replica, as ReadyTracker counts that of a Reducer. One thread at a time.
class BackwardProgress {
 public:
  /// On streams of `device`.
  BackwardProgress(std::shared_ptr<BackwardPlan const> plan, Device device);

  /// Begins a pass: no gradient is ready.
  void begin();
  /// The gradient of `parameter`, one of the plan's, is complete in the order of `stream`. If it is called
  /// again, the last call counts.
  void ready(std::size_t parameter, Stream& stream);
  /// The gradients that were not named, and the messages of small tensors, are complete too.
  void end(Stream& stream);

  /// After end(): work enqueued on `messages` from now on waits for all gradients of the bucket.
  void block(std::size_t bucket, Stream& messages) { complete_[bucket].block(messages); }

 private:
  std::shared_ptr<BackwardPlan const> plan_;
  std::vector<Event> complete_;       // by bucket
  std::vector<std::size_t> missing_;  // by bucket: parameters that are not ready
  std::vector<bool> ready_;           // by parameter
};

}  // namespace ddp
