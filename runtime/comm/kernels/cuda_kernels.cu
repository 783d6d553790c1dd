#include "comm/kernels/cuda_kernels.hpp"

#include <algorithm>

#include "comm/kernels/cuda_element_types.hpp"
#include "ddp/core/text.hpp"
#include "ddp/device/cuda_stream.hpp"
#include "ddp/device/device_guard.hpp"
#include "device/cuda/check.hpp"
#include "device/cuda/floating_types.hpp"
#include "device/cuda/load_kernel.hpp"

namespace ddp::cuda {
namespace {

// As reduce_elements() does it: adding to 0 turns -0 into 0.
__device__ double scaled(double value, double factor) { return plus_product(0.0, value, factor); }
__device__ float scaled(float value, double factor) { return plus_product(0.0F, value, factor); }
__device__ __half scaled(__half value, double factor) {
  return __float2half_rn(scaled(__half2float(value), factor));
}
__device__ __nv_bfloat16 scaled(__nv_bfloat16 value, double factor) {
  return __float2bfloat16_rn(scaled(__bfloat162float(value), factor));
}

template <class T>
__device__ Pack<T> scaled(Pack<T> pack, double factor) {
  for (T& element : pack.elements) element = scaled(element, factor);
  return pack;
}

// A factor that is on the GPU when the kernel runs, or known when it is launched.
struct Factor {
  double const* there = nullptr;
  double here = 1;
};

// T{} is all zero bits, which is 0 in each of the types.
template <class T>
__global__ void scale(T* out, T const* in, std::size_t count, Factor factor) {
  double const by = factor.there != nullptr ? *factor.there : factor.here;
  std::size_t const step = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += step) {
    out[i] = by == 0 ? T{} : scaled(in[i], by);
  }
}

template <class T>
__global__ void hand_over(T* scalar, T* data, std::size_t count, double const* factor) {
  double const by = *factor;
  std::size_t const first = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (first == 0) *scalar = static_cast<T>(by);
  if (by != 0) return;
  std::size_t const step = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  for (std::size_t i = first; i < count; i += step) data[i] = T{};
}

template <class T, std::size_t size>
__global__ void add(Pack<T, size>* to, Addends from, std::size_t count) {
  std::size_t const step = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += step) {
    Pack<T, size> mine = to[i];
    decltype(widened(T{})) sums[size];
    for (std::size_t e = 0; e < size; ++e) sums[e] = widened(mine.elements[e]);
    for (std::size_t a = 0; a < from.size; ++a) {
      Pack<T, size> const theirs = static_cast<Pack<T, size> const*>(from.data[a])[i];
      for (std::size_t e = 0; e < size; ++e) sums[e] += widened(theirs.elements[e]);
    }
    for (std::size_t e = 0; e < size; ++e) mine.elements[e] = narrowed<T>(sums[e]);
    to[i] = mine;
  }
}

template <class T>
void hand_over_typed(void* scalar, void* data, std::size_t count, double const* factor, cudaStream_t stream) {
  cudaLaunchConfig_t const config = a_thread_each(count, stream);
  check(cudaLaunchKernelEx(&config, &hand_over<T>, static_cast<T*>(scalar), static_cast<T*>(data), count,
                           factor),
        "handing over a factor");
}

template <class T>
void launch(T* out, T const* in, std::size_t count, Factor factor, cudaStream_t stream) {
  if (count == 0) return;
  cudaLaunchConfig_t const config = a_thread_each(count, stream);
  check(cudaLaunchKernelEx(&config, &scale<T>, out, in, count, factor), "scaling elements");
}

template <class T>
void scale_typed(void* out, void const* in, std::size_t count, Factor factor, cudaStream_t stream) {
  auto* const to = static_cast<T*>(out);
  auto const* const from = static_cast<T const*>(in);
  std::size_t const packs = is_aligned(out) && is_aligned(in) ? count / Pack<T>::kCount : 0;
  std::size_t const packed = packs * Pack<T>::kCount;
  launch(static_cast<Pack<T>*>(out), static_cast<Pack<T> const*>(in), packs, factor, stream);
  launch(to + packed, from + packed, count - packed, factor, stream);
}

template <class T>
void load_typed() {
  load_kernel(&scale<T>);
  load_kernel(&scale<Pack<T>>);
}

template <class T, std::size_t size>
void launch_add(T* to, Addends const& from, std::size_t count, cudaStream_t stream) {
  if (count < size) return;
  cudaLaunchConfig_t const config = a_thread_each(count / size, stream);
  check(cudaLaunchKernelEx(&config, &add<T, size>, reinterpret_cast<Pack<T, size>*>(to), from, count / size),
        "adding elements");
}

template <class T>
void add_typed(void* to, Addends const& from, std::size_t count, cudaStream_t stream) {
  auto const* const end = from.data.begin() + from.size;
  bool const aligned = is_aligned(to) && std::all_of(from.data.begin(), end, is_aligned);
  std::size_t const packed = aligned ? count - count % Pack<T>::kCount : 0;
  launch_add<T, Pack<T>::kCount>(static_cast<T*>(to), from, packed, stream);
  Addends rest = from;
  for (std::size_t i = 0; i < rest.size; ++i) rest.data[i] = static_cast<T const*>(rest.data[i]) + packed;
  launch_add<T, 1>(static_cast<T*>(to) + packed, rest, count - packed, stream);
}

void scale_any(void* out, void const* in, std::size_t count, DType dtype, Factor factor, Stream& stream) {
  DeviceGuard const guard(stream.device());
  cudaStream_t const handle = cuda_stream(stream).handle();
  with_floating_type("scale_elements", dtype,
                     [&]<class T>(T) { scale_typed<T>(out, in, count, factor, handle); });
}

}  // namespace

void add_elements(void* to, Addends const& from, std::size_t count, DType dtype, Stream& stream) {
  DeviceGuard const guard(stream.device());
  cudaStream_t const handle = cuda_stream(stream).handle();
  switch (dtype) {
    case DType::f64:
      return add_typed<double>(to, from, count, handle);
    case DType::f32:
      return add_typed<float>(to, from, count, handle);
    case DType::f16:
      return add_typed<__half>(to, from, count, handle);
    case DType::bf16:
      return add_typed<__nv_bfloat16>(to, from, count, handle);
    case DType::i64:
      return add_typed<std::uint64_t>(to, from, count, handle);
    case DType::i32:
      return add_typed<std::uint32_t>(to, from, count, handle);
    case DType::u8:
      return add_typed<std::uint8_t>(to, from, count, handle);
    case DType::i8:
    case DType::i16:
    case DType::boolean:
      return;  // refused before
  }
}

void scale_elements(void* out, void const* in, std::size_t count, DType dtype, double const* factor,
                    Stream& stream) {
  scale_any(out, in, count, dtype, {.there = factor}, stream);
}

void multiply_elements(void* data, std::size_t count, DType dtype, double by, Stream& stream) {
  scale_any(data, data, count, dtype, {.here = by}, stream);
}

void load_multiply_elements(DType dtype) {
  with_floating_type("scale_elements", dtype, []<class T>(T) { load_typed<T>(); });
}

void set_factor(void* scalar, void* data, std::size_t count, DType dtype, double const* factor,
                Stream& stream) {
  require(dtype == DType::f32 || dtype == DType::f64,
          [&] { return text("set_factor: expected f32 or f64, found ", dtype); });
  DeviceGuard const guard(stream.device());
  cudaStream_t const handle = cuda_stream(stream).handle();
  if (dtype == DType::f64) {
    hand_over_typed<double>(scalar, data, count, factor, handle);
  } else {
    hand_over_typed<float>(scalar, data, count, factor, handle);
  }
}

}  // namespace ddp::cuda
