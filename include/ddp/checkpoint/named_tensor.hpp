// A tensor and what it is called.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "ddp/core/export.hpp"
#include "ddp/core/tensor.hpp"
#include "ddp/reducer/parameter.hpp"

namespace DDP_EXPORT ddp {

/// A tensor by its name in a safetensors file. The name is UTF-8 and not "__metadata__".
struct NamedTensor {
  std::string name;  ///< unique among those of one file
  TensorView value;  ///< must outlive its users
};

/// The values of `parameters`, by their names. Throws Error(invalid_argument) for one that is not row-major.
[[nodiscard]] std::vector<NamedTensor> named_values(std::span<Parameter const> parameters);

}  // namespace ddp
