// CUDA's 16-bit types as elements: the one public header that needs CUDA's own, so <ddp/ddp.hpp> leaves it
// out.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "ddp/core/dtype.hpp"
#include "ddp/core/export.hpp"

namespace DDP_EXPORT ddp {

// The same bits as float16 and bfloat16, so a view of one is a view of the other.
template <>
inline constexpr DType dtype_of<__half> = DType::f16;
template <>
inline constexpr DType dtype_of<__nv_bfloat16> = DType::bf16;

}  // namespace ddp
