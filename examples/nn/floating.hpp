// From a dtype to a C++ type, for the two types that the layers compute in.
#pragma once

#include "ddp/core/dtype.hpp"
#include "ddp/core/error.hpp"
#include "ddp/core/text.hpp"

namespace nn {

/// Calls function(float{}) or function(double{}). Throws Error(unsupported) for other dtypes.
template <class Function>
void dispatch_floating(ddp::DType dtype, Function&& function) {
  if (dtype == ddp::DType::f32) {
    function(float{});
  } else if (dtype == ddp::DType::f64) {
    function(double{});
  } else {
    throw ddp::Error(ddp::ErrorCode::unsupported,
                     ddp::text("the layers of nn/ compute in f32 or f64, not in ", dtype));
  }
}

}  // namespace nn
