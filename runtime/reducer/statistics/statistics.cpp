#include "reducer/statistics/statistics.hpp"

#include <algorithm>

namespace ddp {

Statistics::Statistics(std::vector<ReducerLane> const& lanes)
    : lanes_(lanes), ranks_(static_cast<std::size_t>(lanes[0].communicator->size())), times_(lanes) {
  for (ReducerLane const& lane : lanes) words_.emplace_back(lane);
}

void Statistics::make_room(std::span<std::size_t const> bucket_lanes) {
  measure();
  times_.make_room(bucket_lanes);
}

void Statistics::exchange(std::size_t lane) {
  tell(lane, *lanes_[lane].comm_stream);
  send(lane);
}

void Statistics::tell(std::size_t lane, Stream& stream) {
  RankTimes::Words mine;
  if (!untold_.empty()) {
    mine = untold_.front();
    untold_.pop_front();
  }
  words_[lane].write(mine, stream);
}

// Null for a step that is given up already.
Statistics::Entry* Statistics::entry(std::uint64_t step) {
  if (step < first_) return nullptr;
  while (step - first_ >= open_.size()) {
    if (open_.size() == kMostOpen) {
      finish_first();
      continue;
    }
    open_.emplace_back().communication_ms.resize(ranks_);
  }
  return &open_[step - first_];
}

void Statistics::measure() {
  while (auto found = times_.next()) {
    untold_.push_back({static_cast<double>(found->step + 1), found->communication_ms});
    if (untold_.size() > kMostOpen) untold_.pop_front();
    if (Entry* const known = entry(found->step)) known->mine = std::move(found);
  }
}

void Statistics::hear() {
  for (RankTimes& words : words_) {
    while (auto const told = words.next()) {
      for (std::size_t r = 0; r < told->size(); ++r) {
        RankTimes::Words const& said = (*told)[r];
        if (said.step < 1) continue;
        Entry* const known = entry(static_cast<std::uint64_t>(said.step) - 1);
        if (known == nullptr || known->communication_ms[r]) continue;
        known->communication_ms[r] = said.communication_ms;
        ++known->heard;
      }
    }
  }
}

void Statistics::finish_first() {
  Entry entry = std::move(open_.front());
  open_.pop_front();
  ++first_;
  if (!entry.mine) return;
  if (entry.heard == ranks_) {
    double longest = 0;
    for (auto const& milliseconds : entry.communication_ms) longest = std::max(longest, *milliseconds);
    for (auto const& milliseconds : entry.communication_ms) {
      entry.mine->late_ms.push_back(longest - *milliseconds);
    }
  }
  finished_.push_back(std::move(*entry.mine));
}

void Statistics::collect() {
  measure();
  hear();
  std::size_t complete = 0;  // a step that is not complete is given up when a later one is
  for (std::size_t i = 0; i < open_.size(); ++i) {
    if (open_[i].mine && open_[i].heard == ranks_) complete = i + 1;
  }
  while (complete-- > 0) finish_first();
}

std::vector<StepStatistics> Statistics::take_rest() {
  while (!open_.empty()) finish_first();
  return take();
}

}  // namespace ddp
