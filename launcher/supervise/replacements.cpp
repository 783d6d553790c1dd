#include "launcher/supervise/replacements.hpp"

#include <algorithm>

#include "ddp/core/text.hpp"

namespace ddp::launcher {
namespace {

constexpr std::chrono::milliseconds kDelay{1000};  // behind one that ended before its first step

}  // namespace

std::string Replacements::lose(std::size_t place, RankOutcome const& lost, Clock::time_point now) {
  if (most_ == 0) return {};
  bool const failed_early = lost.replacement > 0 && !lost.progress;
  without_step_ = failed_early ? without_step_ + 1 : 0;
  if (without_step_ >= kMostWithoutStep) {
    return text("no new process: ", without_step_, " in a row ended before their first step");
  }
  if (used_ + static_cast<int>(waiting_.size() + due_.size()) == most_) {
    return text("no new process is left: ", used_, " of ", most_, " were used");
  }
  Clock::duration const delay = failed_early ? kDelay : Clock::duration::zero();
  if (lost.newcomer) {
    due_[place] = now + delay;
  } else {
    waiting_[place] = delay;
  }
  return {};
}

void Replacements::others_went_on(Clock::time_point now) {
  for (auto const& [place, delay] : waiting_) due_[place] = now + delay;
  waiting_.clear();
}

std::optional<Replacements::Clock::time_point> Replacements::next() const {
  auto const first = std::ranges::min_element(due_, {}, [](auto const& one) { return one.second; });
  return first == due_.end() ? std::nullopt : std::optional(first->second);
}

std::optional<std::size_t> Replacements::take_due(Clock::time_point now) {
  auto const due = std::ranges::find_if(due_, [now](auto const& one) { return one.second <= now; });
  if (due == due_.end()) return std::nullopt;
  std::size_t const place = due->first;
  due_.erase(due);
  ++used_;
  return place;
}

}  // namespace ddp::launcher
