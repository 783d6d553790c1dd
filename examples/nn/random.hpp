// Random numbers that are the same on every machine, with every standard library, for any number of ranks.
#pragma once

#include <cstddef>
#include <cstdint>

namespace nn {

/// A random function of an index. Nothing is carried from call to call, so the values do not depend on who
/// asks for which of them, or in which order. `stream` separates uses of one seed.
class Random {
 public:
  constexpr Random(std::uint64_t seed, std::uint64_t stream) noexcept : key_(mix(mix(seed) + stream)) {}

  /// 64 random bits.
  [[nodiscard]] constexpr std::uint64_t bits(std::uint64_t index) const noexcept {
    return mix(key_ + index * 0x9e3779b97f4a7c15U);
  }
  /// Uniform in [0, 1), a multiple of 2^-53.
  [[nodiscard]] constexpr double uniform(std::uint64_t index) const noexcept {
    return static_cast<double>(bits(index) >> 11) * 0x1p-53;
  }
  /// Uniform in [low, high).
  [[nodiscard]] constexpr double uniform(std::uint64_t index, double low, double high) const noexcept {
    return low + (high - low) * uniform(index);
  }

 private:
  /// SplitMix64's finaliser: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014.
  [[nodiscard]] static constexpr std::uint64_t mix(std::uint64_t x) noexcept {
    x += 0x9e3779b97f4a7c15U;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
    return x ^ (x >> 31);
  }
  std::uint64_t key_;
};

}  // namespace nn
