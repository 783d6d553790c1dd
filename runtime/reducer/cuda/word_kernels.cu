#include <cuda_runtime.h>

#include "reducer/cuda/word_kernels.hpp"

namespace ddp::cuda {
namespace {

__global__ void write_head_kernel(HeadWords* head, HeadWords values, OwnHead* own, OwnHead mine) {
  *head = values;
  *own = mine;
}

__global__ void check_head_kernel(HeadWords const* sums, double ranks, OwnHead const* own, double* factor,
                                  HeadVerdict* verdict) {
  *factor = sums->weight > 0 ? (own->weight > 0 ? own->weight : 0) / sums->weight : 0;
  HeadVerdict::Kind kind = HeadVerdict::none;
  bool const changes = sums->since[0] != 0 && sums->since[1] != 0;
  if (ranks * sums->step_squared != sums->step * sums->step) {
    kind = HeadVerdict::different_steps;
  } else if (ranks * sums->calls_squared != sums->calls * sums->calls) {
    kind = HeadVerdict::different_calls;
  } else if (sums->has_weight != 0 && sums->has_weight != ranks) {
    kind = HeadVerdict::some_weights;
  } else if (changes || (sums->since[2] != 0 && sums->since[3] != 0)) {
    kind = HeadVerdict::lone_steps;
  }
  auto* const written = static_cast<std::uint32_t volatile*>(&verdict->kind);
  if (kind == HeadVerdict::none || *written != HeadVerdict::none) return;
  verdict->step = static_cast<std::uint64_t>(own->step);
  verdict->ranks = kind == HeadVerdict::some_weights ? sums->has_weight : sums->since[changes ? 1 : 3];
  verdict->sum_of_ranks = sums->without[changes ? 0 : 1];
  verdict->changes = changes;
  __threadfence_system();
  *written = kind;
}

__global__ void write_pair_kernel(double* to, double first, double second) {
  to[0] = first;
  to[1] = second;
}

__global__ void write_bits_kernel(std::uint8_t* bytes, std::size_t count, Bits bits) {
  for (std::size_t i = threadIdx.x; i < count; i += blockDim.x) {
    bytes[i] = static_cast<std::uint8_t>((bits[i / 32] >> (i % 32)) & 1U);
  }
}

}  // namespace

void write_head(HeadWords* head, HeadWords const& values, OwnHead* own, OwnHead const& mine,
                CUstream_st* stream) {
  write_head_kernel<<<1, 1, 0, stream>>>(head, values, own, mine);
}

void check_head(HeadWords const* sums, double ranks, OwnHead const* own, double* factor, HeadVerdict* verdict,
                CUstream_st* stream) {
  check_head_kernel<<<1, 1, 0, stream>>>(sums, ranks, own, factor, verdict);
}

void write_pair(double* to, std::array<double, 2> values, CUstream_st* stream) {
  write_pair_kernel<<<1, 1, 0, stream>>>(to, values[0], values[1]);
}

void write_bits(std::uint8_t* bytes, std::size_t count, Bits const& bits, CUstream_st* stream) {
  write_bits_kernel<<<1, 256, 0, stream>>>(bytes, count, bits);
}

}  // namespace ddp::cuda
