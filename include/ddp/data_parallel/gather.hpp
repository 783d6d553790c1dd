// The values of several devices put together on one.
#pragma once

#include <cstddef>
#include <span>

#include "ddp/core/device.hpp"
#include "ddp/core/export.hpp"
#include "ddp/data_parallel/value.hpp"

namespace DDP_EXPORT ddp {

/// Concatenates the tensors of all `outputs` along dimension `dim` on `device`, which may be a CPU. Scalars
/// become a vector with one element for each replica, with one warning. Lists and maps are gathered member by
/// member; other objects become a list; nothing stays nothing. The result is complete when the function
/// returns. `outputs` must be complete when it is called: the host has waited for whatever writes them.
///
/// Throws Error(invalid_argument) for no output, and, naming the replica, if kinds, dtypes, sizes of
/// containers, or extents other than along `dim` differ.
[[nodiscard]] Value gather(std::span<Value const> outputs, Device device, std::size_t dim = 0);

}  // namespace ddp
