// Work for a GPU whose end can be waited for.
#pragma once

#include <cstddef>

#include "ddp/device/tensor_ops.hpp"

namespace ddp::testing {

constexpr Device kGpu{DeviceKind::cuda, DeviceIndex{0}};
constexpr std::size_t kLarge = std::size_t{64} << 20;

/// Takes the GPU a few milliseconds if `memory` has kLarge bytes.
inline void keep_busy(Tensor const& memory, Stream& stream) {
  for (int i = 0; i < 100; ++i) zero_fill(memory, stream);
}

}  // namespace ddp::testing
