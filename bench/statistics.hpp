// What is reported of repeated measurements.
#pragma once

#include <vector>

namespace ddp::bench {

/// The middle value; the mean of the two middle ones for an even number. Throws Error(invalid_argument) for
/// none.
[[nodiscard]] double median(std::vector<double> values);

/// Position by position the largest value of all ranks: the slowest rank counts. All ranks gave the same
/// number of values, or Error(invalid_argument) is thrown.
[[nodiscard]] std::vector<double> slowest(std::vector<std::vector<double>> const& by_rank);

}  // namespace ddp::bench
