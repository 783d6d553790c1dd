#include <limits>

#include "ddp/device/device_guard.hpp"
#include "nn/cuda_support.hpp"
#include "nn/floating.hpp"
#include "nn/softmax_cross_entropy.hpp"

namespace nn::cuda {
namespace {

constexpr unsigned kLanes = 32;
constexpr unsigned kRows = 4;  // of a block: one warp each
constexpr unsigned kAllLanes = 0xffffffff;

template <class T>
__device__ T warp_sum(T value) {
  for (unsigned step = kLanes / 2; step > 0; step /= 2) value += __shfl_xor_sync(kAllLanes, value, step);
  return value;
}

// The largest value of the warp, and the first place where it is.
template <class T>
__device__ void warp_largest(T& value, unsigned& place) {
  for (unsigned step = kLanes / 2; step > 0; step /= 2) {
    T const other = __shfl_xor_sync(kAllLanes, value, step);
    unsigned const other_place = __shfl_xor_sync(kAllLanes, place, step);
    if (other > value || (other == value && other_place < place)) {
      value = other;
      place = other_place;
    }
  }
}

template <class T>
__global__ void score_rows(T const* logits, std::uint8_t const* labels, std::size_t samples, unsigned classes,
                           T* dlogits, double* sums, std::size_t of) {
  std::size_t const n = std::size_t{blockIdx.x} * kRows + threadIdx.y;
  if (n >= samples) return;  // the whole warp
  unsigned const lane = threadIdx.x;
  if (n == 0 && lane == 0) atomicAdd(&sums[3], static_cast<double>(samples));
  unsigned const label = labels[n];
  if (label >= classes) {
    if (lane == 0) atomicAdd(&sums[2], 1.0);
    return;
  }
  T const* const row = logits + n * classes;
  T top = -std::numeric_limits<T>::infinity();
  unsigned place = classes;
  for (unsigned j = lane; j < classes; j += kLanes) {
    if (row[j] > top) {
      top = row[j];
      place = j;
    }
  }
  warp_largest(top, place);
  T sum = 0;
  for (unsigned j = lane; j < classes; j += kLanes) sum += exp(row[j] - top);
  sum = warp_sum(sum);
  if (lane == 0) {
    atomicAdd(&sums[0], static_cast<double>(log(sum) - (row[label] - top)));
    if (place == label) atomicAdd(&sums[1], 1.0);
  }
  if (dlogits == nullptr) return;
  __syncwarp();  // dlogits may be the logits, and lane 0 has read one of another lane
  T const scale = T{1} / static_cast<T>(of);
  for (unsigned j = lane; j < classes; j += kLanes) {
    T const slope = exp(row[j] - top) / sum * scale;
    dlogits[n * classes + j] = j == label ? slope - scale : slope;
  }
}

}  // namespace

void softmax_cross_entropy(Context const& context, ddp::TensorView const& logits,
                           ddp::TensorView const& labels, ddp::TensorView const& dlogits,
                           ddp::TensorView const& sums, std::size_t of) {
  std::size_t const samples = logits.shape[0];
  if (samples == 0) return;
  ddp::DeviceGuard const guard(context.device());
  dispatch_floating(logits.dtype, [&](auto type) {
    using T = decltype(type);
    auto const blocks = static_cast<unsigned>((samples + kRows - 1) / kRows);
    score_rows<T><<<blocks, dim3(kLanes, kRows), 0, stream_of(context)>>>(
        elements<T>(logits, context), elements<std::uint8_t>(labels, context), samples,
        static_cast<unsigned>(logits.shape[1]),
        dlogits.data == nullptr ? nullptr : elements<T>(dlogits, context), elements<double>(sums, context),
        of == 0 ? samples : of);
  });
  check_launch("softmax_cross_entropy");
}

}  // namespace nn::cuda
