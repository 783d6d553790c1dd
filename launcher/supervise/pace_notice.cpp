#include "launcher/supervise/pace_notice.hpp"

#include <iomanip>

#include "ddp/core/text.hpp"

namespace ddp::launcher {
namespace {

constexpr auto kBetweenNotices = std::chrono::seconds(10);

}  // namespace

void PaceNotice::take(Rank rank, Progress const& progress, Clock::time_point now) {
  auto const size = static_cast<std::size_t>(plan_.world_size());
  if (rank != Rank{0} || size < 2 || now < next_) return;
  if (!progress.pace || progress.pace->slowest.index() >= size) return;
  next_ = now + kBetweenNotices;
  Progress::Pace const& pace = *progress.pace;
  std::size_t const slowest = pace.slowest.index();  // under an mpirun each host chooses its ranks' devices
  std::string const device = plan_.mpi_ranks ? "" : text(" (", plan_.ranks[slowest].device, ")");
  console_.say(text(std::fixed, std::setprecision(1), "step ", progress.steps, ", ", pace.step_ms,
                    " ms a step; the slowest is rank ", pace.slowest, device, ", for which others wait ",
                    pace.late_ms, " ms a step"));
}

}  // namespace ddp::launcher
