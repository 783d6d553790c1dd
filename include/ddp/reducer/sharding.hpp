// A sharded optimizer: each rank keeps the state of a part of every bucket, and updates only that.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "ddp/core/export.hpp"
#include "ddp/core/tensor.hpp"
#include "ddp/device/stream.hpp"
#include "ddp/reducer/bucket_plan.hpp"

namespace DDP_EXPORT ddp {

/// What ranks divide among them.
enum class Sharding : std::uint8_t {
  none,       ///< every rank updates every parameter
  optimizer,  ///< every rank updates 1/n of the elements, and gives the others the new values
};

/// A name for messages.
[[nodiscard]] constexpr char const* to_string(Sharding sharding) noexcept {
  return sharding == Sharding::optimizer ? "optimizer" : "none";
}

/// Elements that this rank updates: of one bucket, and of parameters of one group. They lie together, values
/// as gradients, with gaps between parameters where both are 0. So an optimizer that treats every element
/// alike may update the slice as one tensor, and its state of the gaps stays 0.
struct Slice {
  std::size_t index = 0;            ///< in DistributedDataParallel::slices()
  std::size_t bucket = 0;           ///< of the plan
  std::size_t group = 0;            ///< Parameter::group
  TensorView values{};              ///< one-dimensional; of the parameters' type
  TensorView gradient{};            ///< of the same elements; their averages, once they may be updated
  std::vector<BucketSlice> pieces;  ///< what is whose; `bucket_offset` counts from the slice's first element
};

/// Enqueues on `stream` what updates Slice::values by Slice::gradient; on a CPU that is a HostStream. As
/// BucketReady otherwise.
using SliceReady = std::function<void(Slice const& slice, Stream& stream)>;

}  // namespace ddp
