// One value in parts, a part for each device.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "ddp/core/device.hpp"
#include "ddp/core/export.hpp"
#include "ddp/data_parallel/value.hpp"

namespace DDP_EXPORT ddp {

/// Splits every tensor in `input` along dimension `dim` into chunks of ⌈n / devices⌉ indices, the last one
/// smaller: 5 rows over 4 devices are 2, 2 and 1, so 3 parts. Lists and maps are rebuilt around the chunks;
/// other objects are shared by all parts. A value without tensors is shared by as many parts as there are
/// devices; nothing, an empty list and a tensor without rows are one part.
///
/// Chunks lie on their devices when it returns; a chunk that is already there and dense is a view instead of
/// a copy. `input` must be complete: the host has waited for whatever writes it.
///
/// Throws Error(invalid_argument) for an empty list of devices, for a tensor without that dimension, and for
/// tensors that give different numbers of chunks; Error(not_found) for a device that is not there.
[[nodiscard]] std::vector<Value> scatter(Value const& input, std::span<Device const> devices,
                                         std::size_t dim = 0);

}  // namespace ddp
