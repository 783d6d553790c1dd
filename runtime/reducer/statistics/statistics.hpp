// What steps took on this rank, and which ranks others waited for (R20).
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "ddp/reducer/step_statistics.hpp"
#include "reducer/statistics/rank_times.hpp"
#include "reducer/statistics/step_times.hpp"

namespace ddp {

/// Measures steps, tells the other ranks in a later step, and hears from them. All ranks of a group have one,
/// or none.
class Statistics {
 public:
  /// `lanes` must outlive this object.
  explicit Statistics(std::vector<ReducerLane> const& lanes);

  void make_room(std::span<std::size_t const> bucket_lanes);
  [[nodiscard]] StepTimes& times() noexcept { return times_; }
  /// In the step's tail, which is on that lane; may be called inside a group.
  void exchange(std::size_t lane);
  /// The parts of it: what is told, on `stream`, and the exchange, which can be recorded.
  void tell(std::size_t lane, Stream& stream);
  void send(std::size_t lane) { words_[lane].exchange(); }
  /// On a stream that is behind the tail, and outside of the group.
  void keep(std::size_t lane, Stream& stream) { words_[lane].keep(stream); }

  /// Reads what streams have reached by now. Between steps; not while anything is captured into a CUDA graph.
  void collect();
  /// Steps of which all is known, in order, each once.
  [[nodiscard]] std::vector<StepStatistics> take() { return std::exchange(finished_, {}); }
  /// Also those of which not all is known.
  [[nodiscard]] std::vector<StepStatistics> take_rest();

 private:
  /// What is known of one step.
  struct Entry {
    std::optional<StepStatistics> mine;
    std::vector<std::optional<double>> communication_ms;  // by rank
    std::size_t heard = 0;                                // ranks
  };
  [[nodiscard]] Entry* entry(std::uint64_t step);
  void measure();
  void hear();
  void finish_first();

  // Ranks whose words come later than that are not waited for.
  static constexpr std::size_t kMostOpen = 32;
  std::vector<ReducerLane> const& lanes_;
  std::size_t ranks_;
  StepTimes times_;
  std::deque<RankTimes> words_;  // by lane
  std::deque<Entry> open_;       // of step first_, first_ + 1, …
  std::uint64_t first_ = 0;
  std::deque<RankTimes::Words> untold_;
  std::vector<StepStatistics> finished_;
};

}  // namespace ddp
