// Where the statistics of steps go: to the program, into a file, to ddp-launch (R20).
#pragma once

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
  /// `members`: ranks of the whole job. `file`: gets a line of JSON for each step; "" for none. Throws
  /// Error(io) if it cannot be opened, and makes its folder.
  StatisticsReport(std::vector<Rank> members, std::string file);

  void add(std::vector<StepStatistics> steps);
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
