// Progress as it lies in shared memory.
#pragma once

#include <array>
#include <cstdint>

#include "ddp/observe/progress.hpp"

namespace ddp {

/// Steps; the slowest rank + 1, or 0 where there is no pace; the bits of the two times.
using ProgressWords = std::array<std::uint64_t, 4>;
[[nodiscard]] ProgressWords pack(Progress const& progress) noexcept;
/// Takes any words. If those of the pace are not valid, the result has no pace.
[[nodiscard]] Progress unpack(ProgressWords const& words) noexcept;

}  // namespace ddp
