// Where the gradients of a plan lie, for each kind of storage.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "ddp/core/tensor.hpp"
#include "ddp/device/tensor_ops.hpp"
#include "ddp/reducer/bucket_plan.hpp"
#include "ddp/reducer/parameter.hpp"
#include "ddp/reducer/reducer.hpp"

namespace ddp {

/// The lane of a device. Throws Error(invalid_argument) if there is none.
[[nodiscard]] ReducerLane const& lane_of(std::span<ReducerLane const> lanes, Device device);

/// Copies elements, or converts them where the types differ: of one pair of types; at least one.
void move_elements(std::span<Copy const> copies, Stream& stream);

/// Memory of one plan: arenas where the storage has them, and what each bucket sends.
class GradientMemory {
 public:
  GradientMemory() = default;
  /// Collective where arenas are made, unless options.allocate makes them. `merge`: with in_place, whether
  /// neighbours travel as one message; equal on every rank. `previous`: a memory of the same parameters in
  /// another order, whose arenas are taken over; or null.
  GradientMemory(BucketPlan const& plan, std::span<Parameter const> parameters, ReducerOptions const& options,
                 std::span<ReducerLane const> lanes, bool merge, GradientMemory const* previous);

  /// The messages of a bucket: one with arena and copy, or of another dtype (ReducerOptions::reduce_dtype),
  /// one or more with in_place. Those of another dtype share memory, so a bucket's is to be read before the
  /// next bucket's is written.
  [[nodiscard]] std::span<TensorView const> messages(std::size_t bucket) const noexcept {
    return messages_[bucket];
  }
  /// The gradient of a parameter, as the program sees it.
  [[nodiscard]] TensorView const& gradient(std::size_t parameter) const noexcept {
    return gradients_[parameter];
  }
  [[nodiscard]] std::span<Tensor const> arenas() const noexcept { return arenas_; }

  /// Moves the gradients from where `previous`, which has the same arenas, has them. One arena after another
  /// passes through host memory: a GPU may not have room for a second one. The host waits for the lanes'
  /// compute streams.
  void take_gradients(GradientMemory const& previous, std::span<ReducerLane const> lanes) const;

 private:
  void make_arenas(BucketPlan const& plan, ReducerOptions const& options, std::span<ReducerLane const> lanes,
                   GradientMemory const* previous);

  void make_conversion_buffers(BucketPlan const& plan, ReducerOptions const& options,
                               std::span<ReducerLane const> lanes, GradientMemory const* previous);

  [[nodiscard]] TensorView const* conversion_buffer(Device device) const noexcept;  // null: none

  std::vector<Tensor> arenas_;
  std::vector<Tensor> conversion_buffers_;  // the last one of a device is in use; work may still use others
  std::vector<std::vector<TensorView>> messages_;
  std::vector<TensorView> gradients_;
};

/// Which gradients each message of `plan` would hold, and in which order, given where in_place gradients lie
/// on this rank. Ranks may join neighbours only if this is equal on all.
[[nodiscard]] std::string message_layout(BucketPlan const& plan, std::span<Parameter const> parameters);

}  // namespace ddp
