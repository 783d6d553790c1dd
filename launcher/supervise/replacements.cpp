#include "launcher/supervise/replacements.hpp"

#include <algorithm>
#include <utility>

#include "ddp/core/text.hpp"

namespace ddp::launcher {
namespace {

constexpr std::chrono::milliseconds kDelay{1000};  // behind one that ended before its first step
constexpr std::chrono::milliseconds kLongestFirstStep{5000};
constexpr std::chrono::milliseconds kBetweenLooks{10};

}  // namespace

std::string Replacements::lose(std::size_t place, RankOutcome const& lost, Clock::time_point now) {
  if (most_ == 0) return {};
  bool const failed_early = lost.replacement > 0 && !lost.progress;
  without_step_ = failed_early ? without_step_ + 1 : 0;
  if (without_step_ >= kMostWithoutStep) {
    return text("no new process: ", without_step_, " in a row ended before their first step");
  }
  std::size_t const coming = waiting_.size() + (meeting_ ? meeting_->waiting.size() : 0) + due_.size();
  if (used_ + static_cast<int>(coming) == most_) {
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

void Replacements::others_met(Rank first, std::optional<std::uint64_t> steps, Clock::time_point now) {
  if (meeting_) waiting_.merge(meeting_->waiting);
  meeting_.reset();
  if (waiting_.empty()) return;
  meeting_ = {first, steps, now + kLongestFirstStep, now + kBetweenLooks, std::exchange(waiting_, {})};
}

std::optional<Rank> Replacements::awaited() const {
  return meeting_ ? std::optional(meeting_->first) : std::nullopt;
}

void Replacements::note_steps(std::optional<std::uint64_t> steps, Clock::time_point now) {
  if (!meeting_) return;
  meeting_->next_look = now + kBetweenLooks;
  bool const has_ended_one = steps && meeting_->steps && *steps != *meeting_->steps;
  if (!meeting_->steps) meeting_->steps = steps;
  if (!has_ended_one && now < meeting_->by) return;
  for (auto const& [place, delay] : meeting_->waiting) due_[place] = now + delay;
  meeting_.reset();
}

std::optional<Replacements::Clock::time_point> Replacements::next() const {
  auto next = meeting_ ? std::optional(meeting_->next_look) : std::nullopt;
  for (auto const& [place, when] : due_) next = std::min(next.value_or(when), when);
  return next;
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
