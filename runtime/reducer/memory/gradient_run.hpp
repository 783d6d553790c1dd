// A part of a gradient.
#pragma once

#include <cstddef>

#include "ddp/core/tensor.hpp"

namespace ddp {

/// Elements of one parameter, one after another in memory.
struct GradientRun {
  TensorView elements;
  std::size_t parameter = 0;
};

}  // namespace ddp
