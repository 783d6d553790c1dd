// A hash that is the same on every machine and in every build.
#pragma once

#include <cstdint>
#include <string_view>

namespace ddp {

/// FNV-1a, 64 bits (Fowler, Noll, Vo; RFC 9923). Not for secrets.
class StableHash {
 public:
  /// Goes on with `bytes`.
  constexpr StableHash& add(std::string_view bytes) noexcept {
    for (char const c : bytes) step(static_cast<unsigned char>(c));
    return *this;
  }
  /// Goes on with the eight bytes of `value`, the lowest first.
  constexpr StableHash& add(std::uint64_t value) noexcept {
    for (int shift = 0; shift < 64; shift += 8) step(static_cast<unsigned char>(value >> shift));
    return *this;
  }
  /// The hash of all that was added.
  [[nodiscard]] constexpr std::uint64_t value() const noexcept { return value_; }

 private:
  constexpr void step(unsigned char byte) noexcept {
    value_ ^= byte;
    value_ *= 0x100000001b3ULL;
  }
  std::uint64_t value_ = 0xcbf29ce484222325ULL;
};

}  // namespace ddp
