// Averages by NCCL that have no bias.
#pragma once

#include <nccl.h>

#include <array>
#include <cstddef>

#include "comm/kernels/average_factors.hpp"
#include "ddp/core/dtype.hpp"
#include "ddp/device/stream.hpp"

namespace ddp {

/// NCCL's own average multiplies each element by 1/n rounded to the element's type. That is as good as can be
/// where n is a power of two, and in f32 and f64. Of 16-bit floats over other numbers of ranks NCCL is given
/// the exact part of the factor, and finish() multiplies by the rest.
class NcclAverage {
 public:
  /// Over `ranks`, those of `communicator`.
  NcclAverage(std::size_t ranks, ncclComm_t communicator);

  /// What NCCL is to reduce with.
  [[nodiscard]] ncclRedOp_t reduction(DType dtype) const noexcept;
  /// Makes averages of the `count` elements that such a reduction has left in `data`: enqueued behind it,
  /// outside of NCCL's groups.
  void finish(void* data, std::size_t count, DType dtype, Stream& stream) const;

 private:
  [[nodiscard]] bool in_two_steps(DType dtype) const noexcept;
  [[nodiscard]] static std::size_t place(DType dtype) noexcept { return dtype == DType::f16 ? 0 : 1; }

  std::size_t ranks_;
  AverageFactors factors_;
  std::array<ncclRedOp_t, 2> by_power_of_two_{ncclSum, ncclSum};  // of f16 and bf16
};

}  // namespace ddp
