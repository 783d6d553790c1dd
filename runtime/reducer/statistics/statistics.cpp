#include "reducer/statistics/statistics.hpp"

#include <algorithm>
#include <exception>

#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"

namespace ddp {

Statistics::Statistics(ReducerState const& of) : StepPart(of), ranks_(of.ranks.size()), times_(of.lanes) {
  for (ReducerLane const& lane : of.lanes) words_.emplace_back(lane);
}

void Statistics::plan_changed() {
  measure();
  times_.make_room(of_.buckets.lanes());
}

void Statistics::before_bucket(std::size_t bucket) {
  begun_ = bucket;
  times_.bucket_begun(bucket);
}

// If buckets are sent together, all their time counts for the first one.
void Statistics::after_bucket(std::size_t bucket) {
  if (bucket != begun_) times_.bucket_begun(bucket);
  times_.bucket_done(bucket);
}

void Statistics::tell(std::size_t lane, Stream& stream) {
  RankTimes::Words mine;
  if (!untold_.empty()) {
    mine = untold_.front();
    untold_.pop_front();
  }
  words_[lane].write(mine, stream);
}

// What is sent changes from step to step, so it is written before each replay.
void Statistics::tail() {
  std::size_t const lane = of_.buckets.tail_lane();
  if (!of_.step.is_recorded()) tell(lane, *of_.lanes[lane].comm_stream);
  words_[lane].exchange();
}

void Statistics::after_tail() {
  std::size_t const lane = of_.buckets.tail_lane();
  if (!of_.step.is_recorded()) words_[lane].keep(*of_.lanes[lane].comm_stream);
}

void Statistics::end() {
  StepStatistics counts;
  counts.step = of_.step.number;
  counts.buckets = of_.buckets.count();
  for (std::size_t b = 0; b < counts.buckets; ++b) {
    counts.messages += of_.memory.messages(b).size();
    for (TensorView const& message : of_.memory.messages(b)) counts.bytes.value += message.bytes();
  }
  counts.rebuilds = of_.buckets.rebuilds();
  auto const order = of_.marks.arrival_order();
  counts.order.assign(order.begin(), order.end());
  times_.end_step(std::move(counts));
  if (!of_.step.is_recorded()) report();
}

void Statistics::begin_replay(RecordedGraph& graph, StepTimes::Recorded const& recorded) {
  times_.begin_replay(graph, recorded);
  tell(0, *of_.lanes[0].compute_stream);
}

void Statistics::end_replay(StepTimes::Recorded const& recorded, std::uint64_t step) {
  times_.end_replay(recorded, step);
  words_[0].keep(*of_.lanes[0].compute_stream);
  report();
}

void Statistics::report() {
  collect();
  auto finished = std::exchange(finished_, {});
  if (report_ && !finished.empty()) report_(std::move(finished));
}

void Statistics::report_rest() noexcept {
  if (!report_) return;
  try {
    try {
      collect();
    } catch (std::exception const& error) {  // of a GPU that failed; what was read before is known
      log(LogLevel::debug, error.what());
    }
    while (!open_.empty()) finish_first();
    if (!finished_.empty()) report_(std::exchange(finished_, {}));
  } catch (std::exception const& error) {
    log(LogLevel::warning, text("the last statistics of ", of_.ranks.name(), " are missing: ", error.what()));
  }
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

void Statistics::read_told() {
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

// Between steps: reads what streams have reached by now.
void Statistics::collect() {
  measure();
  read_told();
  std::size_t complete = 0;  // a step that is not complete is given up when a later one is
  for (std::size_t i = 0; i < open_.size(); ++i) {
    if (open_[i].mine && open_[i].heard == ranks_) complete = i + 1;
  }
  while (complete-- > 0) finish_first();
}

}  // namespace ddp
