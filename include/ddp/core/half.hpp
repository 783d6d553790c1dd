// 16-bit floating point numbers as storage. Arithmetic is done in float.
#pragma once

#include <bit>
#include <cstdint>

#include "ddp/core/export.hpp"

namespace DDP_EXPORT ddp {

/// bfloat16: the upper half of a float. Rounds to nearest, ties to even; NaN stays NaN.
struct bfloat16 {
  std::uint16_t bits = 0;  ///< as they lie in memory

  bfloat16() = default;
  /// Rounds to the nearest, ties to even.
  explicit bfloat16(float value) noexcept {
    auto const word = std::bit_cast<std::uint32_t>(value);
    auto const rounded = (word + 0x7fffU + ((word >> 16) & 1U)) >> 16;
    bool const nan = (word & 0x7fffffffU) > 0x7f800000U;
    bits = static_cast<std::uint16_t>(nan ? ((word >> 16) | 0x40U) : rounded);
  }
  /// Exact.
  explicit operator float() const noexcept {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }
};

/// IEEE 754 binary16. Rounds to nearest, ties to even; overflow gives infinity; NaN stays NaN.
struct float16 {
  std::uint16_t bits = 0;  ///< as they lie in memory

  float16() = default;
  /// Rounds to the nearest, ties to even.
  explicit float16(float value) noexcept {
    auto const word = std::bit_cast<std::uint32_t>(value);
    std::uint32_t const sign = (word >> 16) & 0x8000U;
    std::uint32_t const magnitude = word & 0x7fffffffU;
    std::uint32_t result = 0;
    if (magnitude > 0x7f800000U) {
      result = 0x7e00U;  // NaN
    } else if (magnitude >= 0x477ff000U) {
      result = 0x7c00U;  // from 65520 on: infinity
    } else if (magnitude >= 0x38800000U) {
      result = (magnitude - 0x38000000U + 0xfffU + ((magnitude >> 13) & 1U)) >> 13;  // normal
    } else {
      // Subnormal: adding 0.5 leaves the value, rounded to 2^-24, in the low bits of the sum.
      auto const sum = std::bit_cast<float>(magnitude) + 0.5F;
      result = std::bit_cast<std::uint32_t>(sum) - 0x3f000000U;
    }
    bits = static_cast<std::uint16_t>(sign | result);
  }
  /// Exact.
  explicit operator float() const noexcept {
    std::uint32_t const sign = static_cast<std::uint32_t>(bits & 0x8000U) << 16;
    std::uint32_t const magnitude = bits & 0x7fffU;
    if (magnitude >= 0x7c00U) {
      return std::bit_cast<float>(sign | 0x7f800000U | ((magnitude & 0x3ffU) << 13));
    }
    // 2^112 moves the exponent from binary16's bias to float's; right for subnormals too.
    auto const scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112F;
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(scaled));
  }
};

static_assert(sizeof(bfloat16) == 2 && sizeof(float16) == 2);

}  // namespace ddp
