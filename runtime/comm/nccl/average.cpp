#include "comm/nccl/average.hpp"

#include <bit>

#include "comm/kernels/cuda_kernels.hpp"
#include "comm/nccl/check.hpp"
#include "ddp/core/half.hpp"

namespace ddp {

NcclAverage::NcclAverage(std::size_t ranks, ncclComm_t communicator)
    : ranks_(ranks), factors_(average_factors(ranks)) {
  if (!in_two_steps(DType::f16)) return;
  auto const make = [&](DType dtype, ncclDataType_t type, auto scalar) {
    nccl::check(ncclRedOpCreatePreMulSum(&by_power_of_two_[place(dtype)], &scalar, type,
                                         ncclScalarHostImmediate, communicator),
                "making an average");
    cuda::load_multiply_elements(dtype);
  };
  auto const before = static_cast<float>(factors_.before);
  make(DType::f16, ncclFloat16, float16(before));
  make(DType::bf16, ncclBfloat16, bfloat16(before));
}

bool NcclAverage::in_two_steps(DType dtype) const noexcept {
  return !std::has_single_bit(ranks_) && (dtype == DType::f16 || dtype == DType::bf16);
}

// The average of one rank is its sum: before 2.29.7 NCCL leaves out the last elements of the average of one
// rank (https://github.com/NVIDIA/nccl/issues/1950).
ncclRedOp_t NcclAverage::reduction(DType dtype) const noexcept {
  if (in_two_steps(dtype)) return by_power_of_two_[place(dtype)];
  return ranks_ == 1 ? ncclSum : ncclAvg;
}

void NcclAverage::finish(void* data, std::size_t count, DType dtype, Stream& stream) const {
  if (in_two_steps(dtype)) cuda::multiply_elements(data, count, dtype, factors_.after, stream);
}

}  // namespace ddp
