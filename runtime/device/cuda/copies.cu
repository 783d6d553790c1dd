#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "ddp/device/cuda_stream.hpp"
#include "ddp/device/device_guard.hpp"
#include "ddp/device/tensor_ops.hpp"
#include "device/cuda/backend.hpp"
#include "device/cuda/check.hpp"

namespace ddp::cuda {
namespace {

constexpr unsigned kCopyThreads = 512;
constexpr unsigned kLoadsInFlight = 4;                              // of a thread
constexpr std::size_t kPieceBytes = std::size_t{64} << 10;          // what one block copies
constexpr std::size_t kMostKernelArguments = std::size_t{4} << 10;  // that every driver takes

// Copies of one launch. They travel as the kernel's argument, so that the host may go on, and a graph may
// replay them.
struct CopyBatch {
  static constexpr unsigned kMost = 128;
  struct Run {
    std::byte* to;
    std::byte const* from;
    std::size_t bytes;  // at least 1
  };
  Run runs[kMost];
  unsigned first_piece[kMost + 1];  // of each run; behind the last one: of all runs together
  unsigned count;
};
static_assert(sizeof(CopyBatch) <= kMostKernelArguments);

template <class Word>
__device__ void copy_words(std::byte* to, std::byte const* from, unsigned bytes) {
  auto* const out = reinterpret_cast<Word*>(to);
  auto const* const in = reinterpret_cast<Word const*>(from);
  constexpr unsigned kWord = sizeof(Word);
  unsigned const words = bytes / kWord;
  for (unsigned first = threadIdx.x; first < words; first += kCopyThreads * kLoadsInFlight) {
    Word held[kLoadsInFlight];
#pragma unroll
    for (unsigned k = 0; k < kLoadsInFlight; ++k) {
      if (unsigned const i = first + k * kCopyThreads; i < words) held[k] = in[i];
    }
#pragma unroll
    for (unsigned k = 0; k < kLoadsInFlight; ++k) {
      if (unsigned const i = first + k * kCopyThreads; i < words) out[i] = held[k];
    }
  }
  unsigned const rest = words * kWord + threadIdx.x;  // fewer bytes than threads
  if (rest < bytes) to[rest] = from[rest];
}

__global__ void copy_runs(CopyBatch const batch) {
  unsigned low = 0;  // first_piece[low] <= this block's piece < first_piece[high]
  unsigned high = batch.count;
  while (high - low > 1) {
    unsigned const middle = (low + high) / 2;
    (batch.first_piece[middle] <= blockIdx.x ? low : high) = middle;
  }
  std::size_t const offset = (blockIdx.x - batch.first_piece[low]) * kPieceBytes;
  std::byte* const to = batch.runs[low].to + offset;
  std::byte const* const from = batch.runs[low].from + offset;
  auto const bytes = static_cast<unsigned>(min(kPieceBytes, batch.runs[low].bytes - offset));
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

void launch(CopyBatch const& batch, cudaStream_t stream) {
  if (batch.count == 0) return;
  copy_runs<<<batch.first_piece[batch.count], kCopyThreads, 0, stream>>>(batch);
  check(cudaGetLastError(), "copying memory");
}

}  // namespace

void load_copy_kernel() {
  cudaFuncAttributes attributes{};
  check(cudaFuncGetAttributes(&attributes, &copy_runs), "loading a kernel");
}

void copy(std::span<Copy const> copies, Stream& stream) {
  DeviceGuard const guard(stream.device());
  cudaStream_t const handle = cuda_stream(stream).handle();
  CopyBatch batch{};
  for (Copy const& each : copies) {
    std::size_t const bytes = each.to.bytes();
    if (bytes == 0 || each.to.data == each.from.data) continue;
    if (each.to.device != stream.device() || each.from.device != stream.device()) {
      copy(each.to, each.from, stream);
      continue;
    }
    batch.runs[batch.count] = {static_cast<std::byte*>(each.to.data),
                               static_cast<std::byte const*>(each.from.data), bytes};
    auto const pieces = static_cast<unsigned>((bytes + kPieceBytes - 1) / kPieceBytes);
    batch.first_piece[batch.count + 1] = batch.first_piece[batch.count] + pieces;
    if (++batch.count < CopyBatch::kMost) continue;
    launch(batch, handle);
    batch.count = 0;
  }
  launch(batch, handle);
}

}  // namespace ddp::cuda
