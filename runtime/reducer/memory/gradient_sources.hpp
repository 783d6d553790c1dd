// Gradients that the program wrote into memory of its own: kept until they are in their buckets.
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

  /// From where `parameter` is to be copied, in place of what was said before in this step. Without memory:
  /// it lies in its buckets already.
  void set(std::size_t parameter, Tensor source);
  /// No memory if nothing is to be copied.
  [[nodiscard]] TensorView const& of(std::size_t parameter) const noexcept {
    return sources_[parameter].view();
  }
  /// The copies of all sources of `bucket` are enqueued on `stream`. In plan order.
  void copying(std::size_t bucket, Stream& stream);
  /// Lets go of the sources whose last copy is through.
  void release_copied();
  /// Lets go of all.
  void release() noexcept;

 private:
  BucketPlan const* plan_ = nullptr;
  std::vector<Tensor> sources_;       // by parameter
  std::vector<Event> copied_;         // by bucket
  std::vector<std::size_t> copying_;  // buckets of this step that had sources
  std::size_t released_ = 0;          // of copying_
  bool is_empty_ = true;
};

}  // namespace ddp
