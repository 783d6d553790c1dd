// allocate() for communicators that are equally fast with any memory.
#pragma once

#include <span>

#include "ddp/comm/communicator.hpp"
#include "ddp/core/tensor.hpp"

namespace ddp {

/// Zeroed memory (u8) of `device`. Throws Error(out_of_memory), for any size that is not available.
[[nodiscard]] Tensor default_allocation(Bytes bytes, Device device);

/// The same for a group: collective, with the same size on every rank. `host`: a communicator of the group
/// for memory of the CPU, with nothing under way. `world_ranks`: of its members, for messages. Throws
/// Error(invalid_argument) and Error(out_of_memory) on every rank, CommError.
[[nodiscard]] Tensor default_allocation_together(Communicator& host, Bytes bytes, Device device,
                                                 std::span<Rank const> world_ranks);

}  // namespace ddp
