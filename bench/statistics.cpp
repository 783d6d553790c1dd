#include "statistics.hpp"

#include <algorithm>

#include "ddp/core/error.hpp"

namespace ddp::bench {

double median(std::vector<double> values) {
  require(!values.empty(), "median: there are no values");
  auto const middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*std::max_element(values.begin(), middle) + *middle) / 2;
}

std::vector<double> slowest(std::vector<std::vector<double>> const& by_rank) {
  require(!by_rank.empty(), "slowest: there are no ranks");
  std::vector<double> result = by_rank.front();
  for (auto const& values : by_rank) {
    require(values.size() == result.size(), "slowest: ranks gave different numbers of values");
    std::transform(values.begin(), values.end(), result.begin(), result.begin(),
                   [](double a, double b) { return std::max(a, b); });
  }
  return result;
}

}  // namespace ddp::bench
