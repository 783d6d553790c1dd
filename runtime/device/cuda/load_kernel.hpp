// Kernels are loaded at their first launch, which may wait for whatever runs on the GPU.
#pragma once

#include <cuda_runtime_api.h>

#include "device/cuda/check.hpp"

namespace ddp::cuda {

/// Loads a kernel onto the current GPU, so that its first launch waits for nothing.
template <class Kernel>
void load_kernel(Kernel* kernel) {
  cudaFuncAttributes attributes{};
  check(cudaFuncGetAttributes(&attributes, kernel), "loading a kernel");
}

}  // namespace ddp::cuda
