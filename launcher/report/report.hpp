// Words about ranks and about a failed job, for people. Pure functions.
#pragma once

#include <chrono>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/report/outcome.hpp"

namespace ddp::launcher {

struct JobOutcome {
  std::string host;
  std::string program;
  std::vector<RankOutcome> ranks;
  int forwarded_signal = 0;  ///< the first that ddp-launch passed on, or 0
  bool failed_before_signal = false;
  std::optional<std::string> difference = {};  ///< first_difference() of the ranks' flight recorders
  std::string flight_files = {};               ///< where they were written; empty: nowhere
  std::string flight_ranks = {};               ///< whose: "all ranks", "ranks 1-3"
  bool output_lost = false;                    ///< Console::output_lost()
  std::optional<int> min_ranks = {};           ///< with --survive
  std::vector<RankOutcome> lost = {};          ///< whose places others of `ranks` have taken
};

/// Under --survive: enough ranks have ended with 0. What befell the others is no failure of the job.
[[nodiscard]] bool survived(JobOutcome const& job);

/// "rank 3", "ranks 0-4,6": `ranks` ascending.
[[nodiscard]] std::string list_ranks(std::span<Rank const> ranks);

/// "rank 2 (pid 4711, cpu:0)".
[[nodiscard]] std::string describe_rank(RankOutcome const& outcome);

/// One line, said when a rank is lost and others go on: "rank 2 (pid 4711, cpu:0) was killed by signal 9
/// (SIGKILL): 3 of 4 ranks are left".
[[nodiscard]] std::string loss_line(RankOutcome const& outcome, std::size_t size, std::size_t left);

/// One line, said when a new process was started: "a new process for rank 2 (pid 4713, cpu:0), 1 of 5".
[[nodiscard]] std::string replacement_line(RankOutcome const& outcome, int number, int most);
/// One line, said when others have taken it in: "rank 2 (pid 4713, cpu:0) takes part: 4 of 4 ranks again".
[[nodiscard]] std::string joined_line(RankOutcome const& outcome, std::size_t size, std::size_t now);

/// One line, said when a rank has just failed and others are still running.
[[nodiscard]] std::string first_failure_line(RankOutcome const& outcome, std::size_t size,
                                             std::size_t still_running, std::chrono::milliseconds grace);

/// The index of the rank that report() names as the first cause. nullopt where nothing failed, and where a
/// signal that was passed on explains the end.
[[nodiscard]] std::optional<std::size_t> named_cause(JobOutcome const& job);

/// Printed last (L8): the first cause with all that is known, then its consequences, one line for ranks that
/// ended alike, then the ranks without which others have gone on. Where nothing failed, a warning of ranks
/// that left_early(), or nothing. Every line starts with "[ddp-launch] ".
[[nodiscard]] std::string report(JobOutcome const& job);

/// What ddp-launch exits with (L9).
[[nodiscard]] int job_exit_code(JobOutcome const& job);

}  // namespace ddp::launcher
