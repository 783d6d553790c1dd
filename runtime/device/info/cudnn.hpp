// cuDNN, loaded at run time: this library does not need it, programs may.
#pragma once

#include "ddp/device/queries.hpp"
#include "device/info/library_version.hpp"

namespace ddp {

/// cudnn_would_accept() with cuDNN from `load`, which is called only if the answer depends on it.
[[nodiscard]] CudnnAnswer cudnn_answer(TensorView const& tensor, LoadedFunction (*load)());

}  // namespace ddp
