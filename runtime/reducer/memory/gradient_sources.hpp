// Gradients that the program wrote into memory of its own: kept until all work that reads them is done.
#pragma once

#include <cstddef>
#include <vector>

#include "ddp/core/tensor.hpp"
#include "ddp/device/event.hpp"
#include "ddp/reducer/bucket_plan.hpp"

namespace ddp {

/// Of one plan. No operation after construction allocates.
class GradientSources {
 public:
  GradientSources() = default;
  /// `plan` must outlive this object.
  explicit GradientSources(BucketPlan const& plan, std::size_t parameters);

  /// Where the gradient of `parameter` lies; replaces an earlier call in this step. Without memory: it lies
  /// in its buckets already.
  void set(std::size_t parameter, Tensor source);
  /// No memory if it lies in its buckets.
  [[nodiscard]] TensorView const& of(std::size_t parameter) const noexcept {
    return sources_[parameter].view();
  }
  /// Call it when all work that reads the sources of `bucket` is enqueued on `stream`. In plan order.
  void reading(std::size_t bucket, Stream& stream);
  /// Releases the sources that have been read.
  void release_read();
  /// Releases all.
  void release() noexcept;

 private:
  BucketPlan const* plan_ = nullptr;
  std::vector<Tensor> sources_;       // by parameter
  std::vector<Event> read_;           // by bucket
  std::vector<std::size_t> reading_;  // buckets of this step that had sources
  std::size_t released_ = 0;          // of reading_
  bool is_empty_ = true;
};

}  // namespace ddp
