#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "ddp/device/cuda_stream.hpp"
#include "ddp/device/device_guard.hpp"
#include "ddp/device/tensor_ops.hpp"
#include "device/cuda/backend.hpp"
#include "device/cuda/check.hpp"
#include "device/cuda/floating_types.hpp"
#include "device/cuda/load_kernel.hpp"
#include "device/memory/block_copy.hpp"

namespace ddp::cuda {
namespace {

constexpr unsigned kCopyThreads = 512;
constexpr unsigned kLoadsInFlight = 4;                              // of a thread
constexpr std::size_t kPieceBytes = std::size_t{64} << 10;          // what one block copies
constexpr std::size_t kPieceElements = std::size_t{16} << 10;       // what one block converts
constexpr std::size_t kMostKernelArguments = std::size_t{4} << 10;  // that every driver takes

// Copies of one launch, in bytes or in elements. They travel as the kernel's argument, so that the host may
// go on, and a graph may replay them. A block does one piece of one run.
struct CopyBatch {
  static constexpr unsigned kMost = 112;
  struct Run {
    std::byte* to;
    std::byte const* from;
    std::size_t length;       // at least 1
    std::uint8_t* nonfinite;  // set to 1 if a number that is written is not finite; may be null
  };
  Run runs[kMost];
  unsigned first_piece[kMost + 1];  // of each run; behind the last one: of all runs together
  unsigned count;
};
static_assert(sizeof(CopyBatch) <= kMostKernelArguments);

// The run of this block's piece.
__device__ unsigned run_of_block(CopyBatch const& batch) {
  unsigned low = 0;  // first_piece[low] <= this block's piece < first_piece[high]
  unsigned high = batch.count;
  while (high - low > 1) {
    unsigned const middle = (low + high) / 2;
    (batch.first_piece[middle] <= blockIdx.x ? low : high) = middle;
  }
  return low;
}

// As ddp::convert_elements() does it on the host.
__device__ void convert(float& to, double from) { to = static_cast<float>(from); }
__device__ void convert(float& to, __half from) { to = __half2float(from); }
__device__ void convert(float& to, __nv_bfloat16 from) { to = __bfloat162float(from); }
__device__ void convert(double& to, float from) { to = from; }
__device__ void convert(__half& to, float from) { to = __float2half_rn(from); }
__device__ void convert(__nv_bfloat16& to, float from) { to = __float2bfloat16_rn(from); }
template <class To, class From>
__device__ void convert(To& to, From from) {
  if constexpr (std::is_same_v<To, From>) {
    to = from;
  } else {
    float between;
    convert(between, from);
    convert(to, between);
  }
}

// Elements that one thread converts at once, if memory is aligned for it.
template <class T>
struct alignas(4 * sizeof(T)) Four {
  T elements[4];
};
template <class To, class From>
__device__ void convert(Four<To>& to, Four<From> from) {
#pragma unroll
  for (unsigned e = 0; e < 4; ++e) convert(to.elements[e], from.elements[e]);
}

__device__ bool is_finite(double number) { return isfinite(number); }
__device__ bool is_finite(float number) { return isfinite(number); }
__device__ bool is_finite(__half number) { return isfinite(__half2float(number)); }
__device__ bool is_finite(__nv_bfloat16 number) { return isfinite(__bfloat162float(number)); }
template <class T>
__device__ bool is_finite(Four<T> const& four) {
  return is_finite(four.elements[0]) && is_finite(four.elements[1]) && is_finite(four.elements[2]) &&
         is_finite(four.elements[3]);
}

// A block's part of a run, with several loads of each thread in flight, to keep memory busy. Calls `look`
// with what is written.
template <class To, class From, class Look>
__device__ void convert_all(To* to, From const* from, unsigned count, Look look) {
  for (unsigned first = threadIdx.x; first < count; first += kCopyThreads * kLoadsInFlight) {
    From held[kLoadsInFlight];
#pragma unroll
    for (unsigned k = 0; k < kLoadsInFlight; ++k) {
      if (unsigned const i = first + k * kCopyThreads; i < count) held[k] = from[i];
    }
#pragma unroll
    for (unsigned k = 0; k < kLoadsInFlight; ++k) {
      unsigned const i = first + k * kCopyThreads;
      if (i >= count) continue;
      To made;
      convert(made, held[k]);
      to[i] = made;
      look(made);
    }
  }
}

template <class Word>
__device__ void copy_words(std::byte* to, std::byte const* from, unsigned bytes) {
  auto const do_not_look = [](auto const&) {};
  unsigned const words = bytes / sizeof(Word);
  convert_all(reinterpret_cast<Word*>(to), reinterpret_cast<Word const*>(from), words, do_not_look);
  unsigned const copied = words * sizeof(Word);
  convert_all(to + copied, from + copied, bytes - copied, do_not_look);
}

__global__ void copy_runs(CopyBatch const batch) {
  unsigned const run = run_of_block(batch);
  std::size_t const offset = (blockIdx.x - batch.first_piece[run]) * kPieceBytes;
  std::byte* const to = batch.runs[run].to + offset;
  std::byte const* const from = batch.runs[run].from + offset;
  auto const bytes = static_cast<unsigned>(min(kPieceBytes, batch.runs[run].length - offset));
  auto const addresses = reinterpret_cast<std::uintptr_t>(to) | reinterpret_cast<std::uintptr_t>(from);
  if (addresses % sizeof(uint4) == 0) {
    copy_words<uint4>(to, from, bytes);
  } else if (addresses % sizeof(std::uint64_t) == 0) {
    copy_words<std::uint64_t>(to, from, bytes);
  } else if (addresses % sizeof(std::uint32_t) == 0) {
    copy_words<std::uint32_t>(to, from, bytes);
  } else if (addresses % sizeof(std::uint16_t) == 0) {
    copy_words<std::uint16_t>(to, from, bytes);
  } else {
    copy_words<std::uint8_t>(to, from, bytes);
  }
}

template <class To, class From>
__global__ void convert_runs(CopyBatch const batch) {
  unsigned const run = run_of_block(batch);
  std::size_t const offset = (blockIdx.x - batch.first_piece[run]) * kPieceElements;
  To* const to = reinterpret_cast<To*>(batch.runs[run].to) + offset;
  From const* const from = reinterpret_cast<From const*>(batch.runs[run].from) + offset;
  auto const count = static_cast<unsigned>(min(kPieceElements, batch.runs[run].length - offset));
  bool const aligned = reinterpret_cast<std::uintptr_t>(to) % sizeof(Four<To>) == 0 &&
                       reinterpret_cast<std::uintptr_t>(from) % sizeof(Four<From>) == 0;
  unsigned const fours = aligned ? count / 4 : 0;
  bool finite = true;
  auto const look = [&finite](auto const& made) { finite = finite && is_finite(made); };
  convert_all(reinterpret_cast<Four<To>*>(to), reinterpret_cast<Four<From> const*>(from), fours, look);
  convert_all(to + 4 * fours, from + 4 * fours, count - 4 * fours, look);
  std::uint8_t* const nonfinite = batch.runs[run].nonfinite;
  if (nonfinite != nullptr && __syncthreads_or(!finite) != 0 && threadIdx.x == 0) *nonfinite = 1;
}

using Kernel = void (*)(CopyBatch);

// The types may be equal.
Kernel conversion(DType to, DType from) {
  Kernel kernel = nullptr;
  with_floating_type("convert_elements", to, [&]<class To>(To) {
    with_floating_type("convert_elements", from, [&]<class From>(From) { kernel = &convert_runs<To, From>; });
  });
  return kernel;
}

// Copies that one kernel does, a launch for as many of them as fit into its argument.
class Launches {
 public:
  Launches(Kernel kernel, std::size_t piece, cudaStream_t stream)
      : kernel_(kernel), piece_(piece), stream_(stream) {}

  void add(void* to, void const* from, std::size_t length, std::uint8_t* nonfinite = nullptr) {
    batch_.runs[batch_.count] = {static_cast<std::byte*>(to), static_cast<std::byte const*>(from), length,
                                 nonfinite};
    auto const pieces = static_cast<unsigned>((length + piece_ - 1) / piece_);
    batch_.first_piece[batch_.count + 1] = batch_.first_piece[batch_.count] + pieces;
    if (++batch_.count == CopyBatch::kMost) launch();
  }
  void launch() {
    if (batch_.count == 0) return;
    kernel_<<<batch_.first_piece[batch_.count], kCopyThreads, 0, stream_>>>(batch_);
    check(cudaGetLastError(), "copying memory");
    batch_.count = 0;
  }

 private:
  Kernel kernel_;
  std::size_t piece_;
  cudaStream_t stream_;
  CopyBatch batch_{};
};

}  // namespace

void load_copy_kernel() { load_kernel(&copy_runs); }

void load_conversion(DType to, DType from) { load_kernel(conversion(to, from)); }

void copy(std::span<Copy const> copies, Stream& stream) {
  DeviceGuard const guard(stream.device());
  Launches launches(&copy_runs, kPieceBytes, cuda_stream(stream).handle());
  for (Copy const& each : copies) {
    std::size_t const bytes = each.to.bytes();
    if (bytes == 0 || each.to.data == each.from.data) continue;
    if (each.to.device != stream.device() || each.from.device != stream.device()) {
      copy_whole(each.to, each.from, stream);
    } else {
      launches.add(each.to.data, each.from.data, bytes);
    }
  }
  launches.launch();
}

void convert(std::span<Copy const> copies, Stream& stream, std::span<std::uint8_t* const> nonfinite) {
  DeviceGuard const guard(stream.device());
  Launches launches(conversion(copies[0].to.dtype, copies[0].from.dtype), kPieceElements,
                    cuda_stream(stream).handle());
  for (std::size_t i = 0; i < copies.size(); ++i) {
    Copy const& each = copies[i];
    if (each.to.count() == 0) continue;
    launches.add(each.to.data, each.from.data, each.to.count(), nonfinite.empty() ? nullptr : nonfinite[i]);
  }
  launches.launch();
}

}  // namespace ddp::cuda
