// Rounding up.
#pragma once

#include <cstddef>

namespace ddp {

/// The smallest multiple of `multiple` that is not below `value`.
[[nodiscard]] constexpr std::size_t round_up(std::size_t value, std::size_t multiple) noexcept {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace ddp
