#include "launcher/supervise/pace_notice.hpp"

#include <iomanip>

#include "bootstrap/progress.hpp"
#include "ddp/core/text.hpp"

namespace ddp::launcher {
namespace {

constexpr auto kBetweenNotices = std::chrono::seconds(10);

}  // namespace

void PaceNotice::take(Rank rank, std::string_view progress, Clock::time_point now) {
  if (rank != Rank{0} || plan_.ranks.size() < 2 || now < next_) return;
  auto const known = read_progress(progress);
  if (!known || !known->pace || known->pace->slowest.index() >= plan_.ranks.size()) return;
  next_ = now + kBetweenNotices;
  Progress::Pace const& pace = *known->pace;
  console_.say(text(std::fixed, std::setprecision(1), "step ", known->steps, ", ", pace.step_ms,
                    " ms a step; the slowest is rank ", pace.slowest, " (",
                    plan_.ranks[pace.slowest.index()].device, "), for which others wait ", pace.late_ms,
                    " ms a step"));
}

}  // namespace ddp::launcher
