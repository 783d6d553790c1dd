#include "launcher/supervise/progress_monitor.hpp"

#include <algorithm>
#include <iomanip>

#include "ddp/core/text.hpp"

namespace ddp::launcher {
namespace {

using namespace std::chrono_literals;

constexpr auto kBetweenLooks = 1s;
constexpr auto kLongWait = 2s;  ///< shorter ones are usual
constexpr auto kBetweenWarnings = 60s;
constexpr auto kBetweenPaces = 10s;

/// The times that waiting ranks wrote down include the time while they were stopped.
constexpr auto kUntilRanksAreBack = 2s;

}  // namespace

void ProgressMonitor::look(bool all_run, Clock::time_point now) {
  if (now < next_) return;
  next_ = now + kBetweenLooks;
  auto all = recordings_.read();
  auto const& members = outcomes_.membership();
  std::erase_if(all, [&](RankFlight const& each) { return !std::ranges::binary_search(members, each.rank); });
  for (RankFlight const& flight : all) {
    bool const is_news = note(flight);
    // Every rank knows the same about all.
    if (is_news && all_run && flight.rank == members.front()) tell_pace(*flight.log->progress, now);
  }
  if (all_run && all.size() > 1) warn(all, now);
}

void ProgressMonitor::leave_out(Clock::time_point now) { next_ = now + kUntilRanksAreBack; }

bool ProgressMonitor::note(RankFlight const& flight) {
  return flight.log && flight.log->progress && outcomes_.note_progress(flight.rank, *flight.log->progress);
}

void ProgressMonitor::warn(std::span<RankFlight const> all, Clock::time_point now) {
  if (now < next_warning_) return;
  auto const since_1970 = std::chrono::system_clock::now().time_since_epoch();
  auto const us = [](auto time) {
    return std::chrono::duration_cast<std::chrono::microseconds>(time).count();
  };
  auto const found = find_straggling(all, us(since_1970), us(outcomes_.went_on().time_since_epoch()));
  if (!found || found->waited < kLongWait || found->key == straggling_) return;
  straggling_ = found->key;
  next_warning_ = now + kBetweenWarnings;
  console_.say(text("warning: ", found->words));
}

void ProgressMonitor::tell_pace(Progress const& progress, Clock::time_point now) {
  auto const size = static_cast<std::size_t>(plan_.world_size());
  std::size_t const left = outcomes_.membership().size();
  bool const is_due = now >= next_pace_ || left != told_of_;
  if (size < 2 || !is_due || !progress.pace || progress.pace->slowest.index() >= size) return;
  next_pace_ = now + kBetweenPaces;
  told_of_ = left;
  Progress::Pace const& pace = *progress.pace;
  std::size_t const slowest = pace.slowest.index();  // under an mpirun each host chooses its ranks' devices
  std::string const device = plan_.mpi_ranks ? "" : text(" (", plan_.ranks[slowest].device, ")");
  std::string const fewer = left < size ? text(left, " of ", size, " ranks, ") : "";
  console_.say(text(std::fixed, std::setprecision(1), "step ", progress.steps, ", ", fewer, pace.step_ms,
                    " ms a step; the slowest is rank ", pace.slowest, device, ", for which others wait ",
                    pace.late_ms, " ms a step"));
}

}  // namespace ddp::launcher
