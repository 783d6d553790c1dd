// cuDNN, loaded at run time: this library does not need it, programs may.
#pragma once

#include "ddp/device/queries.hpp"
#include "device/info/library_version.hpp"

namespace ddp {

/// What cudnn_would_accept() answers with what `load` finds, which is asked only where it matters.
[[nodiscard]] CudnnAnswer cudnn_answer(TensorView const& tensor, LoadedFunction (*load)());

}  // namespace ddp
