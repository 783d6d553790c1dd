#include <algorithm>
#include <cstdint>

#include "comm/kernels/cuda_element_types.hpp"
#include "comm/kernels/cuda_kernels.hpp"
#include "ddp/device/cuda_stream.hpp"
#include "ddp/device/device_guard.hpp"
#include "device/cuda/check.hpp"
#include "device/cuda/floating_types.hpp"
#include "device/cuda/load_kernel.hpp"

namespace ddp::cuda {
namespace {

template <class T, std::size_t size>
__device__ Pack<T, size> load(RankElements const& from, std::size_t rank, std::size_t index) {
  std::size_t const place = rank < from.rank ? rank : rank - 1;
  void const* const elements =
      rank == from.rank ? from.own : static_cast<std::byte const*>(from.others) + place * from.pitch;
  return static_cast<Pack<T, size> const*>(elements)[index];
}

template <class T, std::size_t size>
__global__ void reduce_ranks(Pack<T, size>* out, RankElements from, std::size_t count, ReduceOp::Kind kind) {
  using Sum = decltype(widened(T{}));
  auto const n = static_cast<Sum>(from.ranks);
  bool const is_power_of_two = (from.ranks & (from.ranks - 1)) == 0;
  std::size_t const step = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += step) {
    Sum sums[size] = {};
    for (std::size_t r = 0; r < from.ranks; ++r) {
      double const factor = from.factors != nullptr ? from.factors[r] : 1;
      if (factor == 0) continue;  // whatever that rank's elements are
      Pack<T, size> const theirs = load<T, size>(from, r, i);
      for (std::size_t e = 0; e < size; ++e) {
        Sum const value = widened(theirs.elements[e]);
        if (from.factors != nullptr) {
          sums[e] = plus_product(sums[e], value, factor);
        } else if (r == 0) {
          sums[e] = value;
        } else {
          sums[e] = kind == ReduceOp::Kind::product ? sums[e] * value : sums[e] + value;
        }
      }
    }
    Pack<T, size> result;
    for (std::size_t e = 0; e < size; ++e) {
      if (kind == ReduceOp::Kind::average) sums[e] = is_power_of_two ? sums[e] * (Sum{1} / n) : sums[e] / n;
      result.elements[e] = narrowed<T>(sums[e]);
    }
    out[i] = result;
  }
}

template <class T, std::size_t size>
void launch_reduce(T* out, RankElements const& from, std::size_t count, ReduceOp::Kind kind,
                   cudaStream_t stream) {
  if (count < size) return;
  cudaLaunchConfig_t const config = a_thread_each(count / size, stream);
  check(cudaLaunchKernelEx(&config, &reduce_ranks<T, size>, reinterpret_cast<Pack<T, size>*>(out), from,
                           count / size, kind),
        "reducing elements in rank order");
}

template <class T>
void reduce_typed(void* out, RankElements const& from, std::size_t count, ReduceOp::Kind kind,
                  cudaStream_t stream) {
  bool const aligned = is_aligned(out) && is_aligned(from.own) && is_aligned(from.others) &&
                       from.pitch % alignof(Pack<T>) == 0;
  std::size_t const packed = aligned ? count - count % Pack<T>::kCount : 0;
  launch_reduce<T, Pack<T>::kCount>(static_cast<T*>(out), from, packed, kind, stream);
  RankElements rest = from;
  rest.own = static_cast<T const*>(from.own) + packed;
  rest.others = static_cast<T const*>(from.others) + packed;
  launch_reduce<T, 1>(static_cast<T*>(out) + packed, rest, count - packed, kind, stream);
}

}  // namespace

void reduce_in_rank_order(void* out, RankElements const& from, std::size_t count, DType dtype,
                          ReduceOp::Kind kind, Stream& stream) {
  DeviceGuard const guard(stream.device());
  cudaStream_t const handle = cuda_stream(stream).handle();
  with_floating_type("reduce_in_rank_order", dtype,
                     [&]<class T>(T) { reduce_typed<T>(out, from, count, kind, handle); });
}

void load_reduce_in_rank_order(DType dtype) {
  with_floating_type("reduce_in_rank_order", dtype, []<class T>(T) {
    load_kernel(&reduce_ranks<T, 1>);
    load_kernel(&reduce_ranks<T, Pack<T>::kCount>);
  });
}

}  // namespace ddp::cuda
