// The few things that the runtime itself does to elements, ordered on a stream of the tensor's device.
#pragma once

#include "ddp/core/tensor.hpp"
#include "ddp/device/stream.hpp"

namespace ddp {

/// All bytes of `tensor` = 0.
void zero_fill(TensorView const& tensor, Stream& stream);

/// to = from: same count, dtype and device; they must not overlap unless they are the same.
void copy_elements(TensorView const& to, TensorView const& from, Stream& stream);

}  // namespace ddp
