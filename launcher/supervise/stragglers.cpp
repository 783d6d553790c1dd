#include "launcher/supervise/stragglers.hpp"

#include <algorithm>

#include "ddp/core/text.hpp"

namespace ddp::launcher {
namespace {

using namespace std::chrono_literals;

// Shorter waits are usual.
constexpr auto kLongWait = 2s;
constexpr auto kBetweenFlightLooks = 1s;
constexpr auto kBetweenWarnings = 60s;

/// The times that waiting ranks wrote down include the time while they were stopped.
constexpr auto kUntilRanksAreBack = 2s;

}  // namespace

std::optional<Stragglers::Clock::time_point> Stragglers::next_look() const {
  if (recordings_.size() < 2) return std::nullopt;
  return next_look_;
}

std::optional<Progress> Stragglers::warn(Console& console, Clock::time_point now) {
  if (recordings_.size() < 2 || now < next_look_) return {};
  next_look_ = now + kBetweenFlightLooks;
  auto const all = recordings_.read();
  auto const progress = all.front().log ? all.front().log->progress : std::nullopt;
  auto const since_1970 = std::chrono::system_clock::now().time_since_epoch();
  auto const found =
      find_straggling(all, std::chrono::duration_cast<std::chrono::microseconds>(since_1970).count());
  if (!found || found->waited < kLongWait || found->key == straggling_) return progress;
  straggling_ = found->key;
  next_look_ = now + kBetweenWarnings;
  console.say(text("warning: ", found->words));
  return progress;
}

void Stragglers::leave_out(Clock::duration stopped, Clock::time_point now) {
  next_look_ = std::max(next_look_ + stopped, now + kUntilRanksAreBack);
}

}  // namespace ddp::launcher
