// Which of several streams to take.
#pragma once

#include <cstddef>

namespace ddp {

struct Quiet {
  std::size_t index = 0;
  double time = 0;   ///< with that one
  double first = 0;  ///< with the first
};

/// Measures one after another by `time(i)`, at most `count`, and takes the first that is at most `enough`;
/// without one, the fastest.
template <class Time>
[[nodiscard]] Quiet first_quiet(std::size_t count, double enough, Time const& time) {
  Quiet best;
  for (std::size_t i = 0; i < count; ++i) {
    double const now = time(i);
    if (i == 0) best = {0, now, now};
    if (now < best.time) best = {i, now, best.first};
    if (best.time <= enough) break;
  }
  return best;
}

}  // namespace ddp
