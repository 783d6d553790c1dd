// What this rank says in the tail of a step, written into memory of a GPU.
#include <cuda_runtime_api.h>

#include <algorithm>

#include "ddp/device/cuda_stream.hpp"
#include "ddp/device/device_guard.hpp"
#include "device/cuda/check.hpp"
#include "reducer/cuda/word_kernels.hpp"
#include "reducer/parts/rank_flags.hpp"
#include "reducer/statistics/rank_times.hpp"

namespace ddp::cuda {

void write_flags(TensorView const& words, std::span<std::uint8_t const> flags, Stream& stream) {
  DeviceGuard const guard(words.device);
  auto* const handle = cuda_stream(stream).handle();
  auto* const bytes = static_cast<std::uint8_t*>(words.data);
  for (std::size_t first = 0; first < flags.size(); first += kBitsPerLaunch) {
    std::size_t const count = std::min(kBitsPerLaunch, flags.size() - first);
    Bits bits{};
    for (std::size_t i = 0; i < count; ++i) {
      bits[i / 32] |= static_cast<std::uint32_t>(flags[first + i] != 0) << (i % 32);
    }
    write_bits(bytes + first, count, bits, handle);
  }
  check(cudaPeekAtLastError(), "ending a step");
}

void write_pair(TensorView const& words, std::array<double, 2> values, Stream& stream) {
  DeviceGuard const guard(words.device);
  write_pair(static_cast<double*>(words.data), values, cuda_stream(stream).handle());
  check(cudaPeekAtLastError(), "telling the times of a step");
}

}  // namespace ddp::cuda
