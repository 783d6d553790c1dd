// How elements of several ranks become one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>

#include "ddp/core/export.hpp"

namespace DDP_EXPORT ddp {

/// An operation, and optionally a factor by which this rank's elements are multiplied first.
struct ReduceOp {
  /// What is computed.
  enum class Kind : std::uint8_t { sum, product, min, max, average };

  Kind kind = Kind::sum;  ///< what is computed
  /// This rank's factor, read when the operation runs (not when it is enqueued), in memory that the tensor's
  /// device can read; null for none. Only for sums of floating point numbers. Ranks may have different ones.
  /// With 0 this rank adds nothing, whatever its elements are, even NaN.
  double const* factor = nullptr;

  /// The sum over ranks.
  [[nodiscard]] static constexpr ReduceOp sum() noexcept { return {Kind::sum, nullptr}; }
  /// The product over ranks.
  [[nodiscard]] static constexpr ReduceOp product() noexcept { return {Kind::product, nullptr}; }
  /// The least element of the ranks. If one is NaN, so is the result, on every backend of host memory (shm,
  /// in-process, mpi, staged). NCCL ignores NaN as fmin() does, without guaranteeing it: the result is the
  /// least number, and NaN only if every rank has NaN.
  [[nodiscard]] static constexpr ReduceOp min() noexcept { return {Kind::min, nullptr}; }
  /// The greatest element of the ranks; NaN as in min().
  [[nodiscard]] static constexpr ReduceOp max() noexcept { return {Kind::max, nullptr}; }
  /// The mean over ranks; of floating-point types only. It has no bias, whatever the number of ranks:
  /// Communicator says how it is rounded.
  [[nodiscard]] static constexpr ReduceOp average() noexcept { return {Kind::average, nullptr}; }
  /// The sum over ranks of factor · element; each rank has its own factor, which must live until then.
  [[nodiscard]] static constexpr ReduceOp scaled_sum(double const& factor) noexcept {
    return {Kind::sum, &factor};
  }
  /// A temporary would be gone when the operation runs.
  static ReduceOp scaled_sum(double const&& factor) = delete;
};

[[nodiscard]] constexpr char const* to_string(ReduceOp::Kind kind) noexcept {
  constexpr char const* kNames[] = {"sum", "product", "min", "max", "average"};
  auto const index = static_cast<std::size_t>(kind);
  return index < std::size(kNames) ? kNames[index] : "unknown";
}

}  // namespace ddp
