#include "ddp/observe/progress.hpp"

#include <bit>
#include <cmath>
#include <iomanip>
#include <limits>

#include "ddp/core/text.hpp"
#include "observe/progress_words.hpp"

namespace ddp {

std::string to_string(Progress const& progress) {
  std::string const words = text("step ", progress.steps);
  if (!progress.pace) return words;
  return text(std::fixed, std::setprecision(3), words, ", ", progress.pace->step_ms, " ms, slowest rank ",
              progress.pace->slowest, " by ", progress.pace->late_ms, " ms");
}

ProgressWords pack(Progress const& progress) noexcept {
  if (!progress.pace) return {progress.steps};
  return {progress.steps, static_cast<std::uint64_t>(progress.pace->slowest.value()) + 1,
          std::bit_cast<std::uint64_t>(progress.pace->step_ms),
          std::bit_cast<std::uint64_t>(progress.pace->late_ms)};
}

Progress unpack(ProgressWords const& words) noexcept {
  auto const step_ms = std::bit_cast<double>(words[2]);
  auto const late_ms = std::bit_cast<double>(words[3]);
  bool const is_pace = words[1] > 0 && words[1] <= std::numeric_limits<int>::max() &&
                       std::isfinite(step_ms) && std::isfinite(late_ms);
  if (!is_pace) return {words[0], {}};
  return {words[0], Progress::Pace{step_ms, Rank{static_cast<int>(words[1]) - 1}, late_ms}};
}

}  // namespace ddp
