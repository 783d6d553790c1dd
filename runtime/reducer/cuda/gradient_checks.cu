#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "ddp/device/cuda_stream.hpp"
#include "ddp/device/device_guard.hpp"
#include "device/cuda/check.hpp"
#include "device/cuda/load_kernel.hpp"
#include "reducer/checks/gradient_checks.hpp"
#include "reducer/checks/replica_check.hpp"

namespace ddp::cuda {
namespace {

constexpr unsigned kThreads = 512;
constexpr double kNormFloor = 1e-6;  // as on the host

// Runs of one launch. A block does one piece of one run.
struct Batch {
  static constexpr unsigned kMost = 128;
  struct Run {
    void* elements;
    std::size_t count;
    std::size_t parameter;
  };
  Run runs[kMost];
  unsigned first_piece[kMost + 1];  // of each run; behind the last one: of all runs together
  unsigned count;
};
static_assert(sizeof(Batch) <= std::size_t{4} << 10);  // what a kernel's arguments may take

template <class T>
struct Piece {
  T* elements;
  unsigned count;
  std::size_t parameter;
  std::size_t offset;  // in its run
};

template <class T>
__device__ Piece<T> piece_of_block(Batch const& batch) {
  unsigned low = 0;  // first_piece[low] <= this block's piece < first_piece[high]
  unsigned high = batch.count;
  while (high - low > 1) {
    unsigned const middle = (low + high) / 2;
    (batch.first_piece[middle] <= blockIdx.x ? low : high) = middle;
  }
  Batch::Run const& run = batch.runs[low];
  std::size_t const offset = (blockIdx.x - batch.first_piece[low]) * kCheckedPiece;
  return {static_cast<T*>(run.elements) + offset,
          static_cast<unsigned>(min(kCheckedPiece, run.count - offset)), run.parameter, offset};
}

__device__ double wide(double value) { return value; }
__device__ float wide(float value) { return value; }
__device__ float wide(__half value) { return __half2float(value); }
__device__ float wide(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ void narrow(double& to, double value) { to = value; }
__device__ void narrow(float& to, float value) { to = value; }
__device__ void narrow(__half& to, float value) { to = __float2half_rn(value); }
__device__ void narrow(__nv_bfloat16& to, float value) { to = __float2bfloat16_rn(value); }

// The sum over a block's threads, in thread 0; always added up in the same order.
__device__ double block_sum(double mine) {
  __shared__ double sums[kThreads];
  sums[threadIdx.x] = mine;
  __syncthreads();
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    __syncthreads();
  }
  return sums[0];
}

// What one thread loads at once, if memory is aligned for it.
template <class T>
struct alignas(16) Pack {
  static constexpr unsigned kCount = 16 / sizeof(T);
  T elements[kCount];
};

template <class T>
__global__ void find_kernel(Batch const batch, std::uint8_t* flags) {
  Piece<T> const piece = piece_of_block<T>(batch);
  bool const aligned = reinterpret_cast<std::uintptr_t>(piece.elements) % sizeof(Pack<T>) == 0;
  unsigned const packs = aligned ? piece.count / Pack<T>::kCount : 0;
  bool found = false;
#pragma unroll 4
  for (unsigned i = threadIdx.x; i < packs; i += kThreads) {
    Pack<T> const pack = reinterpret_cast<Pack<T> const*>(piece.elements)[i];
    for (T const element : pack.elements) found |= !isfinite(wide(element));
  }
  for (unsigned i = packs * Pack<T>::kCount + threadIdx.x; i < piece.count; i += kThreads) {
    found |= !isfinite(wide(piece.elements[i]));
  }
  if (__syncthreads_or(found) != 0 && threadIdx.x == 0) flags[piece.parameter] = 1;
}

__global__ void forget_kernel(std::uint8_t* flags, std::size_t count, double const* factor) {
  if (*factor != 0) return;
  for (std::size_t i = threadIdx.x; i < count; i += kThreads) flags[i] = 0;
}

template <class T>
__global__ void squares_kernel(Batch const batch, double* squares) {
  Piece<T> const piece = piece_of_block<T>(batch);
  double sum = 0;
  for (unsigned i = threadIdx.x; i < piece.count; i += kThreads) {
    double const value = wide(piece.elements[i]);
    sum += value * value;
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) squares[blockIdx.x] = sum;
}

template <class T>
__global__ void multiply_kernel(Batch const batch, double const* factor) {
  double const by = *factor;
  if (by == 1) return;
  Piece<T> const piece = piece_of_block<T>(batch);
  for (unsigned i = threadIdx.x; i < piece.count; i += kThreads) {
    auto const value = wide(piece.elements[i]);
    narrow(piece.elements[i], value * static_cast<decltype(value + value)>(by));
  }
}

__global__ void finish_kernel(GradientChecks::Words const words) {
  double sum = 0;
  for (std::size_t i = threadIdx.x; i < words.squares_count; i += kThreads) sum += words.squares[i];
  sum = block_sum(sum);
  bool found = false;
  for (std::size_t i = threadIdx.x; i < words.all_flags_count; i += kThreads) {
    found = found || words.all_flags[i] != 0;
  }
  found = __syncthreads_or(found) != 0;
  if (threadIdx.x != 0) return;
  double const norm = sqrt(sum);
  *words.norm = norm;
  bool const clips = words.clip_norm > 0 && isfinite(norm);
  *words.factor = clips ? fmin(1.0, words.clip_norm / (norm + kNormFloor)) : 1.0;
  *words.found = found || !isfinite(norm) ? 1.0F : 0.0F;
}

template <class Word>
__global__ void hash_kernel(Batch const batch, std::uint64_t* hashes) {
  Piece<Word> const piece = piece_of_block<Word>(batch);
  std::uint64_t hash = 0;
  for (unsigned i = threadIdx.x; i < piece.count; i += kThreads) {
    hash += hash_of(piece.elements[i], piece.offset + i);
  }
  for (unsigned step = 16; step > 0; step /= 2) hash += __shfl_down_sync(~0U, hash, step);
  if (threadIdx.x % 32 == 0) {
    atomicAdd(reinterpret_cast<unsigned long long*>(hashes + piece.parameter),
              static_cast<unsigned long long>(hash));
  }
}

// Calls launch(kernel of the runs' type, batch) for as many runs as fit into its argument, and so on.
template <class Launch>
void for_batches(std::span<GradientRun const> runs, Launch launch) {
  Batch batch{};
  for (GradientRun const& run : runs) {
    std::size_t const count = run.elements.count();
    if (count == 0) continue;
    batch.runs[batch.count] = {run.elements.data, count, run.parameter};
    auto const pieces = static_cast<unsigned>((count + kCheckedPiece - 1) / kCheckedPiece);
    batch.first_piece[batch.count + 1] = batch.first_piece[batch.count] + pieces;
    if (++batch.count < Batch::kMost) continue;
    launch(batch);
    batch.count = 0;
  }
  if (batch.count != 0) launch(batch);
}

template <class... Arguments>
struct Kernels {
  using Kernel = void (*)(Batch, Arguments...);
  Kernel f64, f32, f16, bf16;
  [[nodiscard]] Kernel of(DType dtype) const {
    return dtype == DType::f64 ? f64 : dtype == DType::f32 ? f32 : dtype == DType::f16 ? f16 : bf16;
  }
  void load() const {
    for (Kernel const kernel : {f64, f32, f16, bf16}) load_kernel(kernel);
  }
};

constexpr Kernels<std::uint8_t*> kFind{find_kernel<double>, find_kernel<float>, find_kernel<__half>,
                                       find_kernel<__nv_bfloat16>};
constexpr Kernels<double*> kSquares{squares_kernel<double>, squares_kernel<float>, squares_kernel<__half>,
                                    squares_kernel<__nv_bfloat16>};
constexpr Kernels<double const*> kMultiply{multiply_kernel<double>, multiply_kernel<float>,
                                           multiply_kernel<__half>, multiply_kernel<__nv_bfloat16>};

// Runs of one bucket have one type.
template <class Kernel, class Pointer>
void launch_all(std::span<GradientRun const> runs, Kernel kernel, Pointer pointer, bool advances,
                Stream& stream) {
  DeviceGuard const guard(stream.device());
  cudaStream_t const handle = cuda_stream(stream).handle();
  for_batches(runs, [&](Batch const& batch) {
    unsigned const pieces = batch.first_piece[batch.count];
    kernel<<<pieces, kThreads, 0, handle>>>(batch, pointer);
    check(cudaGetLastError(), "checking gradients");
    if (advances) pointer += pieces;
  });
}

}  // namespace

void find_nonfinite(std::span<GradientRun const> runs, std::uint8_t* flags, Stream& stream) {
  if (!runs.empty()) launch_all(runs, kFind.of(runs[0].elements.dtype), flags, false, stream);
}

void forget_without_weight(std::uint8_t* flags, std::size_t count, double const* factor, Stream& stream) {
  DeviceGuard const guard(stream.device());
  forget_kernel<<<1, kThreads, 0, cuda_stream(stream).handle()>>>(flags, count, factor);
  check(cudaGetLastError(), "checking gradients");
}

void sum_squares(std::span<GradientRun const> runs, double* squares, Stream& stream) {
  if (!runs.empty()) launch_all(runs, kSquares.of(runs[0].elements.dtype), squares, true, stream);
}

void multiply(std::span<GradientRun const> runs, double const* factor, Stream& stream) {
  if (!runs.empty()) launch_all(runs, kMultiply.of(runs[0].elements.dtype), factor, false, stream);
}

void hash_elements(std::span<GradientRun const> runs, std::uint64_t* hashes, Stream& stream) {
  for (GradientRun const& run : runs) {  // which may have different types
    std::size_t const size = size_of(run.elements.dtype);
    auto const kernel = size == 8   ? &hash_kernel<std::uint64_t>
                        : size == 4 ? &hash_kernel<std::uint32_t>
                                    : &hash_kernel<std::uint16_t>;
    launch_all(std::span(&run, 1), kernel, hashes, false, stream);
  }
}

void finish_checks(GradientChecks::Words const& words, Stream& stream) {
  DeviceGuard const guard(stream.device());
  finish_kernel<<<1, kThreads, 0, cuda_stream(stream).handle()>>>(words);
  check(cudaGetLastError(), "checking gradients");
}

void load_check_kernels() {
  kFind.load();
  kSquares.load();
  kMultiply.load();
  load_kernel(&finish_kernel);
  load_kernel(&forget_kernel);
}

void load_hash_kernels() {
  load_kernel(&hash_kernel<std::uint64_t>);
  load_kernel(&hash_kernel<std::uint32_t>);
  load_kernel(&hash_kernel<std::uint16_t>);
}

}  // namespace ddp::cuda
