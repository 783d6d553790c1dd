// Philox 4x32-10: a random function of a counter and a key. J. K. Salmon, M. A. Moraes, R. O. Dror, D. E.
// Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC11, https://doi.org/10.1145/2063384.2063405; its
// constants and known answers are those of the authors' Random123.
//
// Also compiled for GPUs (constexpr), so that both sides draw the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace ddp {

/// 128 bits, word 0 the lowest.
struct PhiloxBlock {
  std::uint32_t words[4];
  friend constexpr bool operator==(PhiloxBlock const& a, PhiloxBlock const& b) noexcept {
    return a.words[0] == b.words[0] && a.words[1] == b.words[1] && a.words[2] == b.words[2] &&
           a.words[3] == b.words[3];
  }
};

/// The 128 random bits of `counter` under `key`.
[[nodiscard]] constexpr PhiloxBlock philox(PhiloxBlock counter, std::uint32_t key0,
                                           std::uint32_t key1) noexcept {
  constexpr std::uint64_t kMultiplier0 = 0xD2511F53;
  constexpr std::uint64_t kMultiplier1 = 0xCD9E8D57;
  constexpr std::uint32_t kWeyl0 = 0x9E3779B9;  // the golden ratio
  constexpr std::uint32_t kWeyl1 = 0xBB67AE85;  // the square root of 3, less 1
  constexpr int kRounds = 10;
  for (int round = 0; round < kRounds; ++round) {
    std::uint64_t const product0 = kMultiplier0 * counter.words[0];
    std::uint64_t const product1 = kMultiplier1 * counter.words[2];
    counter = {{static_cast<std::uint32_t>(product1 >> 32) ^ counter.words[1] ^ key0,
                static_cast<std::uint32_t>(product1),
                static_cast<std::uint32_t>(product0 >> 32) ^ counter.words[3] ^ key1,
                static_cast<std::uint32_t>(product0)}};
    key0 += kWeyl0;
    key1 += kWeyl1;
  }
  return counter;
}

/// Where a fill draws its numbers: block `offset + i` of a stream of a seed.
struct RandomSource {
  std::uint64_t seed = 0;
  std::uint64_t stream = 0;
  std::uint64_t offset = 0;

  [[nodiscard]] constexpr PhiloxBlock block(std::uint64_t i) const noexcept {
    std::uint64_t const at = offset + i;
    return philox({{static_cast<std::uint32_t>(at), static_cast<std::uint32_t>(at >> 32),
                    static_cast<std::uint32_t>(stream), static_cast<std::uint32_t>(stream >> 32)}},
                  static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32));
  }
};

/// Numbers of type T that one block gives.
template <class T>
inline constexpr std::size_t kPerBlock = sizeof(T) == 8 ? 2 : 4;

/// The type that a number is computed in before it is rounded to T.
template <class T>
using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;

/// 53 bits of two words as a double of [0, 1).
[[nodiscard]] constexpr double unit_double(std::uint32_t low, std::uint32_t high) noexcept {
  std::uint64_t const bits = (static_cast<std::uint64_t>(high) << 32 | low) >> 11;
  return static_cast<double>(bits) * 0x1p-53;
}
/// 24 bits of a word as a float of [0, 1).
[[nodiscard]] constexpr float unit_float(std::uint32_t word) noexcept {
  return static_cast<float>(word >> 8) * 0x1p-24F;
}

/// Number `i` of a block, uniform in [0, 1).
template <class T>
[[nodiscard]] constexpr auto unit(PhiloxBlock const& block, std::size_t i) noexcept {
  if constexpr (kPerBlock<T> == 2) {
    return unit_double(block.words[2 * i], block.words[2 * i + 1]);
  } else {
    return unit_float(block.words[i]);
  }
}

/// What Box and Muller's formula makes two numbers from: `i`, which is even, and `i + 1`.
struct UnitPair {
  double radius;  ///< in (0, 1]
  double angle;   ///< in [0, 1), of a full turn
};
template <class T>
[[nodiscard]] constexpr UnitPair unit_pair(PhiloxBlock const& block, std::size_t i) noexcept {
  if constexpr (kPerBlock<T> == 2) {
    return {1.0 - unit_double(block.words[0], block.words[1]), unit_double(block.words[2], block.words[3])};
  } else {
    return {(static_cast<double>(block.words[i]) + 1.0) * 0x1p-32, block.words[i + 1] * 0x1p-32};
  }
}

}  // namespace ddp
