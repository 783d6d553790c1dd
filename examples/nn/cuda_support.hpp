// What the layers' CUDA sources share.
#pragma once

#include <cublas_v2.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <string_view>

#include "ddp/core/text.hpp"
#include "ddp/device/cuda_stream.hpp"
#include "nn/context.hpp"

namespace nn::cuda {

constexpr unsigned kThreads = 256;  // of a block, where nothing asks for another number

/// Both throw Error(device) with what was being done and the library's own words.
inline void check(cudaError_t result, std::string_view doing) {
  if (result == cudaSuccess) return;
  throw ddp::Error(ddp::ErrorCode::device,
                   ddp::text(doing, ": ", cudaGetErrorName(result), ": ", cudaGetErrorString(result)));
}
inline void check(cublasStatus_t result, std::string_view doing) {
  if (result == CUBLAS_STATUS_SUCCESS) return;
  throw ddp::Error(ddp::ErrorCode::device,
                   ddp::text(doing, ": ", cublasGetStatusName(result), ": ", cublasGetStatusString(result)));
}

/// To be called right after a kernel's launch.
inline void check_launch(std::string_view kernel) { check(cudaGetLastError(), kernel); }

[[nodiscard]] inline cudaStream_t stream_of(Context const& context) {
  return ddp::cuda_stream(context.stream()).handle();
}

/// Blocks of kThreads threads for a loop over `count` elements that strides over the whole grid; 0 for none.
[[nodiscard]] inline unsigned blocks_for(std::size_t count) {
  constexpr std::size_t kMost = 4096;
  return static_cast<unsigned>(std::min((count + kThreads - 1) / kThreads, kMost));
}

/// The elements of memory of the context's GPU.
template <class T>
[[nodiscard]] T* elements(ddp::TensorView const& view, Context const& context) {
  ddp::require(view.dtype == ddp::dtype_of<T> && view.device == context.device(), [&] {
    return ddp::text("a layer on ", context.device(), " in ", ddp::dtype_of<T>, " was given ",
                     ddp::describe(view));
  });
  return static_cast<T*>(view.data);
}

}  // namespace nn::cuda
