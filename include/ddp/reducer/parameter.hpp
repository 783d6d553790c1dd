// How the runtime sees a model: as named memory.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "ddp/core/export.hpp"
#include "ddp/core/tensor.hpp"

namespace DDP_EXPORT ddp {

/// One trainable tensor of a model. The runtime has no autograd: the program says when a gradient is
/// written.
struct Parameter {
  std::string name;  ///< unique in its model, the same on every rank: "fc1.weight"
  TensorView value;  ///< must outlive its users
  /// GradientStorage::arena: called with the memory (shape, dtype and device of `value`) to which the
  /// gradient is to be written from now on. It is called at construction, when the memory is zeroed, and
  /// again if the buckets are rebuilt after the first step, when it already holds the gradient. The Tensor
  /// owns that memory: a copy of the Tensor may outlive the caller.
  std::function<void(Tensor const&)> bind_gradient{};
  /// With GradientStorage in_place and copy: where the program keeps the gradient. Unused with arena.
  TensorView gradient{};
  /// How `value`, and so its gradient, lies in memory: the distance between neighbours along each axis, in
  /// elements, as a transposed or channels-last tensor has it. Empty: row-major. Gaps and overlaps are an
  /// error. Elements are sent in the order of memory, so the layout must be the same on every rank.
  std::vector<std::size_t> strides{};
  /// With Sharding::optimizer: called once, at construction, with the memory where the values are from now on
  /// (shape, dtype, device and strides of `value`); it holds them already. The Tensor owns that memory.
  std::function<void(Tensor const&)> bind_value{};
  /// With Sharding::optimizer: parameters whose optimizer has other settings are of another group; a Slice is
  /// of one.
  std::size_t group = 0;
};

/// A tensor by its name: a buffer, which is not trained but must be the same on every rank at the start, as
/// batch-norm statistics, or what a checkpoint holds.
struct NamedTensor {
  std::string name;                    ///< unique in its model, and among those of one checkpoint file
  TensorView value;                    ///< must outlive its users
  std::vector<std::size_t> strides{};  ///< as in Parameter
};

/// How ranks keep buffers alike while they train.
enum class BufferSync {
  broadcast,  ///< all take the values of the group's first rank
  average,  ///< all take the mean over ranks of floating-point buffers, and the first rank's values of others
  never,    ///< each rank keeps its own
};

[[nodiscard]] constexpr char const* to_string(BufferSync how) noexcept {
  switch (how) {
    case BufferSync::broadcast:
      return "broadcast";
    case BufferSync::average:
      return "average";
    case BufferSync::never:
      return "never";
  }
  return "unknown";
}

/// Where gradients live.
enum class GradientStorage {
  arena,     ///< in the runtime's buckets: nothing is copied
  in_place,  ///< in the program's memory, reduced there; neighbours in memory are sent together
  copy,      ///< in the program's memory, copied into buckets and back: for memory that cannot be sent from
};

[[nodiscard]] constexpr char const* to_string(GradientStorage storage) noexcept {
  switch (storage) {
    case GradientStorage::arena:
      return "arena";
    case GradientStorage::in_place:
      return "in_place";
    case GradientStorage::copy:
      return "copy";
  }
  return "unknown";
}

}  // namespace ddp
