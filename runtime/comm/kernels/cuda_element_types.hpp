// What kernels of communicators have in common: types of elements, how many a thread loads, and launches.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace ddp::cuda {

inline constexpr unsigned kThreads = 256;
// Enough to fill the memory's bandwidth; more would only take room from the program's own kernels.
inline constexpr std::size_t kMostBlocks = 512;

// Elements that one thread loads at once, if all memory is aligned for it.
template <class T, std::size_t count = 16 / sizeof(T)>
struct alignas(count * sizeof(T)) Pack {
  static constexpr std::size_t kCount = count;
  T elements[kCount];
};

// The type of sums, as in reduce_elements(): float for 16-bit floats; integers are unsigned, so that overflow
// wraps.
__device__ inline double widened(double value) { return value; }
__device__ inline float widened(float value) { return value; }
__device__ inline float widened(__half value) { return __half2float(value); }
__device__ inline float widened(__nv_bfloat16 value) { return __bfloat162float(value); }
template <class T>
__device__ T widened(T value) requires std::is_unsigned_v<T> {
  return value;
}
template <class T, class Sum>
__device__ T narrowed(Sum sum) {
  if constexpr (std::is_same_v<T, __half>) {
    return __float2half_rn(sum);
  } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __float2bfloat16_rn(sum);
  } else {
    return static_cast<T>(sum);
  }
}

// A product is rounded before it is added, as on a CPU.
__device__ inline double plus_product(double sum, double value, double factor) {
  return __dadd_rn(sum, __dmul_rn(value, factor));
}
__device__ inline float plus_product(float sum, float value, double factor) {
  return __fadd_rn(sum, __fmul_rn(value, static_cast<float>(factor)));
}

inline cudaLaunchConfig_t a_thread_each(std::size_t count, cudaStream_t stream) {
  cudaLaunchConfig_t config{};
  std::size_t const blocks = (count + kThreads - 1) / kThreads;
  config.gridDim = static_cast<unsigned>(std::clamp(blocks, std::size_t{1}, kMostBlocks));
  config.blockDim = kThreads;
  config.stream = stream;
  return config;
}

inline bool is_aligned(void const* memory) {
  return reinterpret_cast<std::uintptr_t>(memory) % alignof(Pack<float>) == 0;
}

}  // namespace ddp::cuda
