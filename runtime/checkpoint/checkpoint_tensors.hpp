// Whether tensors can be put into a checkpoint.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "ddp/checkpoint/checkpoint_tensors.hpp"

namespace ddp {

/// Throws Error(invalid_argument) for tensors that lie neither on `device` nor in host memory, are not
/// row-major, or are parts of another dtype than their whole.
void check_checkpoint_tensors(CheckpointTensors const& tensors, Device device);

/// Where this rank's parts of `tensors` lie, in few bytes, for check_parts().
[[nodiscard]] std::string describe_parts(std::span<ShardedTensor const> tensors);
/// Throws Error(invalid_argument) naming tensor, elements and ranks unless each element of each of `tensors`
/// is in one part. `by_rank`: each rank's describe_parts() of the same tensors.
void check_parts(std::span<ShardedTensor const> tensors, std::span<std::string const> by_rank);

}  // namespace ddp
