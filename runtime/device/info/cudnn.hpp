// cuDNN, loaded at run time: this library does not need it, programs may.
#pragma once

#include <span>

#include "ddp/device/queries.hpp"

namespace ddp {

/// What cudnn_would_accept() answers with the first of `files` that can be loaded.
[[nodiscard]] CudnnAnswer cudnn_answer(TensorView const& tensor, std::span<char const* const> files);

}  // namespace ddp
