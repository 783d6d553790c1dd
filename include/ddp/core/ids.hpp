// Ids and sizes as types: a rank is not a device index, bytes are not elements.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "ddp/core/export.hpp"

namespace DDP_EXPORT ddp {

/// An integer id of one kind. Made explicitly, compared with its own kind or with a plain int.
template <class Tag>
class Id {
 public:
  constexpr Id() noexcept = default;
  constexpr explicit Id(int value) noexcept : value_(value) {}           ///< The id of that number.
  [[nodiscard]] constexpr int value() const noexcept { return value_; }  ///< The number.
  /// For indexing arrays that have one entry per id. The id must not be negative.
  [[nodiscard]] constexpr std::size_t index() const noexcept { return static_cast<std::size_t>(value_); }
  friend constexpr auto operator<=>(Id, Id) noexcept = default;  ///< By number.
  friend constexpr bool operator==(Id, Id) noexcept = default;   ///< By number.
  /// By number.
  friend constexpr bool operator==(Id id, int value) noexcept { return id.value_ == value; }
  friend std::ostream& operator<<(std::ostream& out, Id id) { return out << id.value_; }  ///< The number.

 private:
  int value_ = 0;
};

using Rank = Id<struct RankTag>;                ///< 0 … size-1 of a group of processes
using LocalRank = Id<struct LocalRankTag>;      ///< 0 … size-1 of the processes of one host
using DeviceIndex = Id<struct DeviceIndexTag>;  ///< logical device number: the 1 of cuda:1

/// Ranks 0 to size-1.
[[nodiscard]] std::vector<Rank> all_ranks(int size);

/// A size in bytes.
struct Bytes {
  std::size_t value = 0;                                               ///< how many
  friend constexpr auto operator<=>(Bytes, Bytes) noexcept = default;  ///< By number.
  /// By number.
  friend constexpr bool operator==(Bytes, Bytes) noexcept = default;  // as in Device

  /// Adds `more`.
  constexpr Bytes& operator+=(Bytes more) noexcept {
    value += more.value;
    return *this;
  }
  friend constexpr Bytes operator+(Bytes a, Bytes b) noexcept { return {a.value + b.value}; }  ///< The sum.
  /// What is left of `a`, which must not be less than `b`.
  friend constexpr Bytes operator-(Bytes a, Bytes b) noexcept { return {a.value - b.value}; }
  friend constexpr Bytes operator*(std::size_t n, Bytes b) noexcept { return {n * b.value}; }  ///< n times b.
  /// One of `parts` equal parts, rounded down.
  friend constexpr Bytes operator/(Bytes b, std::size_t parts) noexcept { return {b.value / parts}; }
};

/// Sizes as people write them: 25_MiB. Outside of namespace ddp: `using namespace ddp::literals;`.
inline namespace literals {
/// Bytes.
constexpr Bytes operator""_B(unsigned long long n) noexcept { return {n}; }
/// 2^10 bytes each.
constexpr Bytes operator""_KiB(unsigned long long n) noexcept { return n * Bytes{std::size_t{1} << 10}; }
/// 2^20 bytes each.
constexpr Bytes operator""_MiB(unsigned long long n) noexcept { return n * Bytes{std::size_t{1} << 20}; }
/// 2^30 bytes each.
constexpr Bytes operator""_GiB(unsigned long long n) noexcept { return n * Bytes{std::size_t{1} << 30}; }
}  // namespace literals

/// "25 MiB", "1.5 KiB", "17 B".
[[nodiscard]] std::string to_string(Bytes bytes);

}  // namespace ddp

/// Ids as keys.
template <class Tag>
struct std::hash<ddp::Id<Tag>> {
  /// The hash of the number.
  std::size_t operator()(ddp::Id<Tag> id) const noexcept { return std::hash<int>{}(id.value()); }
};
