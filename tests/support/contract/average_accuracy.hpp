// How close averages of 16-bit floats come to the truth, over many elements.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <span>
#include <string>

#include "support/contract/communicator_contract.hpp"

namespace ddp::testing {

/// Enough that errors of rounding cancel out, and a factor that is off does not.
constexpr std::size_t kAveraged = 50'000;

/// What stands at element `i` of rank `rank`: of all ranks the same power of two from 1/8 to 8, times 1 to 2.
/// (Where one rank's is far smaller than the sum, rounding at each rank loses more of it than it adds.)
template <class T>
[[nodiscard]] T average_sample(int rank, std::size_t i) {
  std::uint64_t mixed =
      (i + 1) * 0x9e3779b97f4a7c15U + static_cast<std::uint64_t>(rank) * 0xbf58476d1ce4e5b9U;
  mixed = (mixed ^ (mixed >> 31U)) * 0x94d049bb133111ebU;
  mixed ^= mixed >> 29U;
  double const mantissa = 1 + static_cast<double>(mixed >> 40U) / 0x1p24;
  return to_element<T>(std::ldexp(mantissa, static_cast<int>(i % 7) - 3));
}

/// The average over `ranks` of what `present` of them have there; the others have 0.
template <class T>
[[nodiscard]] double true_average(int present, int ranks, std::size_t i) {
  double sum = 0;
  for (int r = 0; r < present; ++r) sum += as_double(average_sample<T>(r, i));
  return sum / ranks;
}

/// That `found`, elements from `first` on, are averages that were rounded at most `roundings` times, and that
/// their errors cancel out.
template <class T>
void expect_averages(std::span<T const> found, int present, int ranks, int roundings, std::string const& what,
                     std::size_t first = 0) {
  constexpr int kDigits = std::is_same_v<T, bfloat16> ? 8 : 11;
  double bias = 0;
  double worst = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    double const truth = true_average<T>(present, ranks, first + i);
    double const error = (as_double(found[i]) - truth) / truth;
    bias += error / static_cast<double>(found.size());
    worst = std::max(worst, std::abs(error));
  }
  // The error of 1/3 in the type is 2^(1 - kDigits) / 4.
  EXPECT_LT(std::abs(bias), std::ldexp(1, -kDigits - 5)) << what << ": the mean relative error";
  EXPECT_LE(worst, std::ldexp(1.001 * roundings, -kDigits)) << what << ": the largest relative error";
}

}  // namespace ddp::testing
