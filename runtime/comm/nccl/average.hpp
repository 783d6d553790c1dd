// Averages by NCCL that have no bias.
#pragma once

#include <nccl.h>

#include <array>
#include <bit>
#include <cstddef>

#include "ddp/core/dtype.hpp"
#include "ddp/device/stream.hpp"

namespace ddp {

/// Each rank's elements are multiplied by `before`, then added up; the sum is multiplied by `after`.
///
/// 1/n rounded to 16 bits would be off by up to 0.2 %, the same on every element. A power of two is exact,
/// and small enough that the sum cannot overflow where the average does not; the remaining factor lies
/// between 1 and 2, and is applied in f32.
struct AverageFactors {
  double before = 1;
  double after = 1;
};

[[nodiscard]] constexpr AverageFactors average_factors(std::size_t ranks) noexcept {
  auto const power = static_cast<double>(std::bit_ceil(ranks));
  return {1 / power, power / static_cast<double>(ranks)};
}

/// NCCL's own average multiplies each element by 1/n rounded to the element's type. There is nothing better
/// for n that are powers of two, and in f32 and f64. For 16-bit floats and other n, NCCL is given the exact
/// part of the factor, and finish() multiplies by the rest.
class NcclAverage {
 public:
  /// Over `ranks`, those of `communicator`.
  NcclAverage(std::size_t ranks, ncclComm_t communicator);

  /// What NCCL is to reduce with.
  [[nodiscard]] ncclRedOp_t reduction(DType dtype) const noexcept;
  /// Enqueued behind such a reduction, outside of NCCL's groups: makes averages of the `count` elements in
  /// `data`.
  void finish(void* data, std::size_t count, DType dtype, Stream& stream) const;

 private:
  [[nodiscard]] bool in_two_steps(DType dtype) const noexcept;
  [[nodiscard]] static std::size_t place(DType dtype) noexcept { return dtype == DType::f16 ? 0 : 1; }

  std::size_t ranks_;
  AverageFactors factors_;
  std::array<ncclRedOp_t, 2> by_power_of_two_{ncclSum, ncclSum};  // of f16 and bf16
};

}  // namespace ddp
