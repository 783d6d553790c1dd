// Jobs whose ranks have ended, for what ddp-launch says of them.
#pragma once

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "launcher/report/report.hpp"

/// A namespace of its own: other tests of the launcher have functions of these names.
namespace ddp::launcher::job_outcomes {

using std::chrono::milliseconds;

/// Rank r ended well at r milliseconds.
inline JobOutcome job_of(int size) {
  JobOutcome job;
  job.host = "host";
  job.program = "./train";
  for (int r = 0; r < size; ++r) {
    RankOutcome rank;
    rank.rank = Rank{r};
    rank.pid = 100 + r;
    rank.device = Device{};
    rank.ended = true;
    rank.first_trouble = RankOutcome::Clock::time_point{} + milliseconds(r + 1);
    job.ranks.push_back(rank);
  }
  return job;
}

inline ReportedError error(ErrorCode code, std::string words) {
  return {{.code = code, .detail = std::move(words)}};
}

/// What `by` says when it waited in vain for `ranks`.
inline ReportedError error(ErrorCode code, Failure::Manner manner, std::vector<Rank> ranks, int by) {
  return {{.code = code,
           .manner = manner,
           .ranks = std::move(ranks),
           .operation = "barrier",
           .by = Rank{by},
           .waited = milliseconds(2000)}};
}

}  // namespace ddp::launcher::job_outcomes
