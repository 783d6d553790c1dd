#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "ddp/core/text.hpp"
#include "ddp/device/cuda_stream.hpp"
#include "ddp/device/device_guard.hpp"
#include "device/cuda/backend.hpp"
#include "device/cuda/check.hpp"
#include "device/cuda/floating_types.hpp"
#include "device/random/host_random.hpp"

namespace ddp::cuda {
namespace {

constexpr unsigned kThreads = 256;
constexpr std::size_t kMostBlocks = 1024;

__device__ float multiply_add(float a, float b, float c) { return __fmaf_rn(a, b, c); }
__device__ double multiply_add(double a, double b, double c) { return __fma_rn(a, b, c); }

__device__ void store(double* to, double value) { *to = value; }
__device__ void store(float* to, float value) { *to = value; }
__device__ void store(__half* to, float value) { *to = __float2half_rn(value); }
__device__ void store(__nv_bfloat16* to, float value) { *to = __float2bfloat16_rn(value); }

// As fill_uniform_of() of host_random.cpp, bit for bit.
template <class T>
__global__ void fill_uniform(T* data, std::size_t count, RandomSource source, Wide<T> low, Wide<T> high) {
  std::size_t const step = std::size_t{gridDim.x} * blockDim.x * kPerBlock<T>;
  std::size_t const first = (std::size_t{blockIdx.x} * blockDim.x + threadIdx.x) * kPerBlock<T>;
  for (std::size_t i = first; i < count; i += step) {
    PhiloxBlock const block = source.block(i / kPerBlock<T>);
    for (std::size_t j = 0; j < kPerBlock<T> && i + j < count; ++j) {
      Wide<T> const value = multiply_add(unit<T>(block, j), high - low, low);
      store(data + i + j, value < high ? value : low);
    }
  }
}

template <class T>
__global__ void fill_normal(T* data, std::size_t count, RandomSource source, double mean, double deviation) {
  std::size_t const step = std::size_t{gridDim.x} * blockDim.x * kPerBlock<T>;
  std::size_t const first = (std::size_t{blockIdx.x} * blockDim.x + threadIdx.x) * kPerBlock<T>;
  for (std::size_t i = first; i < count; i += step) {
    PhiloxBlock const block = source.block(i / kPerBlock<T>);
    for (std::size_t j = 0; j < kPerBlock<T> && i + j < count; ++j) {
      UnitPair const pair = unit_pair<T>(block, j & ~std::size_t{1});
      double const turn = 2 * std::numbers::pi * pair.angle;
      double const unit_normal = sqrt(-2 * log(pair.radius)) * (j % 2 == 0 ? cos(turn) : sin(turn));
      store(data + i + j, static_cast<Wide<T>>(__fma_rn(unit_normal, deviation, mean)));
    }
  }
}

template <class T>
void launch(TensorView const& tensor, RandomFill const& how, cudaStream_t stream) {
  std::size_t const draws = (tensor.count() + kPerBlock<T> - 1) / kPerBlock<T>;
  auto const blocks = static_cast<unsigned>(std::min((draws + kThreads - 1) / kThreads, kMostBlocks));
  T* const data = static_cast<T*>(tensor.data);
  if (how.kind == RandomFill::Kind::uniform) {
    fill_uniform<T><<<blocks, kThreads, 0, stream>>>(
        data, tensor.count(), how.source, static_cast<Wide<T>>(how.first), static_cast<Wide<T>>(how.second));
  } else {
    fill_normal<T><<<blocks, kThreads, 0, stream>>>(data, tensor.count(), how.source, how.first, how.second);
  }
}

}  // namespace

void fill_random(TensorView const& tensor, RandomFill const& how, Stream& stream) {
  DeviceGuard const guard(tensor.device);
  cudaStream_t const handle = cuda_stream(stream).handle();
  with_floating_type("random numbers", tensor.dtype, [&]<class T>(T) { launch<T>(tensor, how, handle); });
  check(cudaGetLastError(), text("filling ", describe(tensor), " with random numbers"));
}

}  // namespace ddp::cuda
