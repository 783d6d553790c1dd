// How elements of several ranks become one.
#pragma once

#include <cstdint>

namespace ddp {

/// An operation, and optionally a factor that this rank's elements are multiplied with first.
struct ReduceOp {
  enum class Kind : std::uint8_t { sum, product, min, max, average };

  Kind kind = Kind::sum;
  /// Where this rank's factor stands when the operation runs (not when it is enqueued), in memory that the
  /// tensor's device can read; null for none. Only for sums of floating point numbers. Ranks may differ. With
  /// 0 this rank adds nothing, whatever its elements are, NaN included.
  double const* factor = nullptr;

  [[nodiscard]] static constexpr ReduceOp sum() noexcept { return {Kind::sum, nullptr}; }
  [[nodiscard]] static constexpr ReduceOp product() noexcept { return {Kind::product, nullptr}; }
  [[nodiscard]] static constexpr ReduceOp min() noexcept { return {Kind::min, nullptr}; }
  [[nodiscard]] static constexpr ReduceOp max() noexcept { return {Kind::max, nullptr}; }
  [[nodiscard]] static constexpr ReduceOp average() noexcept { return {Kind::average, nullptr}; }
  [[nodiscard]] static constexpr ReduceOp scaled_sum(double const& factor) noexcept {
    return {Kind::sum, &factor};
  }
};

[[nodiscard]] constexpr char const* to_string(ReduceOp::Kind kind) noexcept {
  switch (kind) {
    case ReduceOp::Kind::sum:
      return "sum";
    case ReduceOp::Kind::product:
      return "product";
    case ReduceOp::Kind::min:
      return "min";
    case ReduceOp::Kind::max:
      return "max";
    case ReduceOp::Kind::average:
      return "average";
  }
  return "unknown";
}

}  // namespace ddp
