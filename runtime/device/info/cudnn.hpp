// cuDNN, loaded at run time: this library does not need it, programs may.
#pragma once

#include <span>
#include <string>

#include "ddp/device/queries.hpp"

namespace ddp {

/// Its version from the first of `files` that can be loaded; `problem` says why there is none.
struct CudnnVersion {
  std::size_t code = 0;  ///< as cuDNN counts; 0: none
  std::string problem;
};
[[nodiscard]] CudnnVersion cudnn_version(std::span<char const* const> files);

/// What cudnn_would_accept() answers with that cuDNN.
[[nodiscard]] CudnnAnswer cudnn_answer(TensorView const& tensor, CudnnVersion const& (*version)());

}  // namespace ddp
