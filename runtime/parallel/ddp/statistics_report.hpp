// Where the statistics of steps go: to the program, into a file, to ddp-launch (R20).
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/system/own_file.hpp"
#include "ddp/core/ids.hpp"
#include "ddp/observe/progress.hpp"
#include "ddp/reducer/step_statistics.hpp"

namespace ddp {

/// Any thread.
class StatisticsReport {
 public:
  /// `members`: ranks of the whole job, in this membership. `file`: gets a line of JSON for each step; "" for
  /// none. `steps_before`: of earlier memberships. Throws Error(io) if the file cannot be opened, and makes
  /// its folder.
  StatisticsReport(std::vector<Rank> members, std::string file, int membership = 0,
                   std::uint64_t steps_before = 0);
  ~StatisticsReport() { flush(); }

  void add(std::vector<StepStatistics> steps);
  /// Until then lines are kept, so that a process that is killed leaves whole ones.
  void flush();
  /// The last one that was added.
  [[nodiscard]] std::optional<StepStatistics> newest() const;
  /// Over the steps since the last call; nullopt if there were none, and if there is only one rank.
  [[nodiscard]] std::optional<Progress::Pace> take_pace();

 private:
  void write(StepStatistics const& step);

  mutable std::mutex mutex_;
  std::vector<Rank> members_;
  std::string file_;
  int membership_;
  std::uint64_t steps_before_;
  std::string lines_;  // that are not in the file yet
  OwnFileStream out_;
  std::vector<std::size_t> order_;  // the last one written
  std::optional<StepStatistics> newest_;
  double steps_ = 0;  // of the pace
  double step_ms_ = 0;
  std::vector<double> late_ms_;
};

/// "FOLDER/rank3.ddp-0.jsonl", for the wrapper of that name; "" without a folder.
[[nodiscard]] std::string statistics_file(std::string const& folder, Rank rank, std::string name);

}  // namespace ddp
