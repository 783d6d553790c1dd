#include "launcher/supervise/progress_monitor.hpp"

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
  auto const all = recordings_.read();
  for (RankFlight const& flight : all) {
    bool const is_news = note(flight);
    // Every rank knows the same about all.
    if (is_news && all_run && flight.rank == 0) tell_pace(*flight.log->progress, now);
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
  auto const found =
      find_straggling(all, std::chrono::duration_cast<std::chrono::microseconds>(since_1970).count());
  if (!found || found->waited < kLongWait || found->key == straggling_) return;
  straggling_ = found->key;
  next_warning_ = now + kBetweenWarnings;
  console_.say(text("warning: ", found->words));
}

void ProgressMonitor::tell_pace(Progress const& progress, Clock::time_point now) {
  auto const size = static_cast<std::size_t>(plan_.world_size());
  if (size < 2 || now < next_pace_ || !progress.pace || progress.pace->slowest.index() >= size) return;
  next_pace_ = now + kBetweenPaces;
  Progress::Pace const& pace = *progress.pace;
  std::size_t const slowest = pace.slowest.index();  // under an mpirun each host chooses its ranks' devices
  std::string const device = plan_.mpi_ranks ? "" : text(" (", plan_.ranks[slowest].device, ")");
  console_.say(text(std::fixed, std::setprecision(1), "step ", progress.steps, ", ", pace.step_ms,
                    " ms a step; the slowest is rank ", pace.slowest, device, ", for which others wait ",
                    pace.late_ms, " ms a step"));
}

}  // namespace ddp::launcher
