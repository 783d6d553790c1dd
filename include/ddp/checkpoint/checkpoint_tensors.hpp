// What a checkpoint holds: tensors that every rank has, and tensors of which each rank has a part.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ddp/core/export.hpp"
#include "ddp/core/tensor.hpp"
#include "ddp/parallel/distributed_data_parallel.hpp"
#include "ddp/reducer/parameter.hpp"

namespace DDP_EXPORT ddp {

/// A tensor whose elements are divided among the ranks: each is in one part of one rank.
struct ShardedTensor {
  /// A run of its elements.
  struct Part {
    std::size_t offset = 0;  ///< of the whole, row-major: the element where it begins
    TensorView elements;     ///< of any shape
  };
  std::string name;           ///< as NamedTensor's; the same on every rank, as shape and dtype
  Shape shape;                ///< of the whole
  DType dtype = DType::f32;   ///< of each element
  std::vector<Part> parts{};  ///< this rank's, in any order; there may be none
};

/// What a checkpoint holds. Views: their memory lies on the world's device or in host memory, row-major, and
/// must outlive the Checkpoint. A name is UTF-8 and not "__metadata__".
struct CheckpointTensors {
  std::vector<NamedTensor> model;        ///< equal on every rank; rank 0 writes model.safetensors
  std::vector<NamedTensor> optimizer{};  ///< likewise, optimizer.safetensors
  std::vector<NamedTensor> rank{};       ///< this rank's own (random numbers …), rank-N.safetensors
  /// In optimizer.safetensors too, whole, as if `optimizer` had held them; each rank writes its parts.
  std::vector<ShardedTensor> sharded_optimizer{};
};

/// The values of `parameters`, with their names. Throws Error(invalid_argument) if one is not row-major.
[[nodiscard]] std::vector<NamedTensor> named_values(std::span<Parameter const> parameters);

/// For CheckpointTensors::sharded_optimizer: what a sharded optimizer remembers of each element, such as
/// "exp_avg", as a tensor "state.PARAMETER.exp_avg" for each parameter. `by_slice[i]` has as many elements as
/// `ddp.slices()[i]`, in the same order; those of gaps between parameters are left out. `dtype`: of the
/// state; if not said, that of each parameter. Throws Error(invalid_argument) if they do not fit or a
/// parameter is not row-major, Error(invalid_state) as slices().
[[nodiscard]] std::vector<ShardedTensor> sharded_states(DistributedDataParallel const& ddp,
                                                        std::string_view state,
                                                        std::span<TensorView const> by_slice,
                                                        std::optional<DType> dtype = std::nullopt);

}  // namespace ddp
