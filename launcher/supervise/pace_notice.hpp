// Tells the user how fast a running job is, and which rank the others wait for.
#pragma once

#include <chrono>

#include "ddp/core/deadline.hpp"
#include "ddp/core/ids.hpp"
#include "ddp/observe/progress.hpp"
#include "launcher/output/console.hpp"
#include "launcher/plan/plan.hpp"

namespace ddp::launcher {

/// From the progress that the first rank reports, if it measures steps (Options::statistics): every rank
/// knows the same about all. Says it at once, and then every 10 s.
class PaceNotice {
 public:
  using Clock = Deadline::Clock;
  PaceNotice(Plan const& plan, Console& console) : plan_(plan), console_(console) {}

  void take(Rank rank, Progress const& progress, Clock::time_point now);

 private:
  Plan const& plan_;
  Console& console_;
  Clock::time_point next_{};
};

}  // namespace ddp::launcher
