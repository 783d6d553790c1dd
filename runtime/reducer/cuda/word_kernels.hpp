// Kernels of a step's head and of its used parameters, with one thread or a few. Everything that changes is
// passed by value, so that the host may go on to the next step.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

struct CUstream_st;

namespace ddp::cuda {

struct HeadWords {
  double weight;
  double has_weight;
  double step;
  double step_squared;
  double calls;  ///< Communicator::called(), as far as it is summed exactly
  double calls_squared;
  double since[4];    ///< 1 for each bit of SinceLastStep
  double without[2];  ///< the rank, for the bits of what it has not done
};

/// What a rank keeps of its own head, which will hold sums.
struct OwnHead {
  double weight;  ///< below 0: none
  double step;
};

/// What a step's head showed, in pinned memory, written only if ranks differ. The first difference stays.
struct HeadVerdict {
  enum Kind : std::uint32_t { none, different_steps, different_calls, some_weights, lone_steps };
  std::uint64_t step;
  double ranks;         ///< how many have a weight, or have not done what others have
  double sum_of_ranks;  ///< of the latter
  bool changes;         ///< what they have not done: change parameters, otherwise clear gradients
  std::uint32_t kind;   ///< written last
};

/// How many parameters one launch of write_bits covers.
inline constexpr std::size_t kBitsPerLaunch = std::size_t{8} * 2048;
using Bits = std::array<std::uint32_t, kBitsPerLaunch / 32>;

/// *head = values; *own = mine.
void write_head(HeadWords* head, HeadWords const& values, OwnHead* own, OwnHead const& mine,
                CUstream_st* stream);
/// *factor = the own weight over the sum of weights, or 0; *verdict, where the sums show that ranks differ.
void check_head(HeadWords const* sums, double ranks, OwnHead const* own, double* factor, HeadVerdict* verdict,
                CUstream_st* stream);
/// to[0], to[1] = values.
void write_pair(double* to, std::array<double, 2> values, CUstream_st* stream);
/// bytes[i] = bit i, for `count` of at most kBitsPerLaunch.
void write_bits(std::uint8_t* bytes, std::size_t count, Bits const& bits, CUstream_st* stream);

}  // namespace ddp::cuda
