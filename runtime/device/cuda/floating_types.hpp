// The floating point types as kernels know them.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "ddp/core/dtype.hpp"
#include "ddp/core/error.hpp"
#include "ddp/core/text.hpp"

namespace ddp::cuda {

/// Calls `use` with a value of the type. Throws Error(invalid_argument), which begins with `what`, for other
/// types.
template <class Use>
void with_floating_type(char const* what, DType dtype, Use use) {
  switch (dtype) {
    case DType::f64:
      return use(double{});
    case DType::f32:
      return use(float{});
    case DType::f16:
      return use(__half{});
    case DType::bf16:
      return use(__nv_bfloat16{});
    default:
      throw Error(ErrorCode::invalid_argument, text(what, ": expected a floating point type, found ", dtype));
  }
}

}  // namespace ddp::cuda
