// What steps took on this rank, and which ranks others waited for (R20).
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "ddp/reducer/step_statistics.hpp"
#include "reducer/parts/step_part.hpp"
#include "reducer/statistics/rank_times.hpp"
#include "reducer/statistics/step_times.hpp"

namespace ddp {

/// Measures steps, tells the other ranks in a later step, and hears from them.
class Statistics final : public StepPart {
 public:
  explicit Statistics(ReducerState const& of);

  /// `report` gets the steps of which all is known, in order, each once.
  void report_to(std::function<void(std::vector<StepStatistics>)> report) { report_ = std::move(report); }
  /// Reports also steps of which not all is known, when the streams have reached all that they will reach.
  void report_rest() noexcept;
  [[nodiscard]] StepTimes& times() noexcept { return times_; }
  /// Before and after a replay of a recorded step.
  void begin_replay(RecordedGraph& graph, StepTimes::Recorded const& recorded);
  void end_replay(StepTimes::Recorded const& recorded, std::uint64_t step);

  [[nodiscard]] std::string describe() const override { return "statistics"; }
  void plan_changed() override;
  void begin() override { times_.begin_step(); }
  void before_bucket(std::size_t bucket) override;
  void after_bucket(std::size_t bucket) override;
  void begin_wait() override { times_.begin_wait(); }
  void tail() override;
  void after_tail() override;
  void end() override;

 private:
  /// What is known of one step.
  struct Entry {
    std::optional<StepStatistics> mine;
    std::vector<std::optional<double>> communication_ms;  // by rank
    std::size_t heard = 0;                                // ranks
  };
  void tell(std::size_t lane, Stream& stream);
  void collect();
  void report();
  [[nodiscard]] Entry* entry(std::uint64_t step);
  void measure();
  void read_told();
  void finish_first();

  // A step is reported without the words of ranks that come later than that.
  static constexpr std::size_t kMostOpen = 32;
  std::size_t ranks_;
  std::size_t begun_ = 0;  // the first bucket of those that are sent together
  StepTimes times_;
  std::deque<RankTimes> words_;  // by lane
  std::deque<Entry> open_;       // of step first_, first_ + 1, …
  std::uint64_t first_ = 0;
  std::deque<RankTimes::Words> untold_;
  std::vector<StepStatistics> finished_;
  std::function<void(std::vector<StepStatistics>)> report_;
};

}  // namespace ddp
