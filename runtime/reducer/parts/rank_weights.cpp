#include "reducer/parts/rank_weights.hpp"

#include <limits>
#include <utility>

#include "ddp/core/error.hpp"
#include "ddp/core/text.hpp"

namespace ddp {

RankWeights::RankWeights(ReducerState const& of, Without without, bool allowed)
    : StepPart(of), without_(without), allowed_(allowed) {
  for (ReducerLane const& lane : of.lanes) heads_.push_back(StepHead::make(lane));
}

void RankWeights::set(double weight) {
  std::size_t const ranks = of_.ranks.size();
  double const most = std::numeric_limits<double>::max() / 2 / static_cast<double>(ranks);
  require(weight >= 0 && weight <= most, [&] {
    return text("set_weight: a weight is a number from 0 to ", most, ", so that those of ", ranks,
                " ranks can be added up; this is ", weight);
  });
  if (!allowed_) {
    throw Error(ErrorCode::invalid_state,
                "set_weight() with Options::uneven = divide_by_all: a weighted mean is divided by the "
                "weights; set uneven to divide_by_live");
  }
  weight_ = weight;
}

ReduceOp RankWeights::op(std::size_t lane) const {
  if (weight_) return ReduceOp::scaled_sum(heads_[lane]->factor());
  return without_ == Without::sum ? ReduceOp::sum() : ReduceOp::average();
}

bool RankWeights::settle() {
  bool any = false;
  for (auto const& head : heads_) any = head->settle().left_out() || any;
  return any;
}

void RankWeights::begin_replay() {
  heads_[0]->begin_replay(of_.step.number, weight_.value_or(-1), *of_.lanes[0].compute_stream);
}

std::string RankWeights::describe() const {
  return text("reduction ", without_ == Without::sum ? "sum" : "average");
}

void RankWeights::begin() {
  if (without_ == Without::live_average && !weight_) weight_ = of_.step.kind == StepKind::joined ? 0 : 1;
}

void RankWeights::head() {
  if (of_.step.is_recorded()) {  // recorded work must come after the begin of the recording
    of_.lanes[0].comm_stream->wait(*of_.lanes[0].compute_stream);
    heads_[0]->record(weight_.value_or(-1));
  } else {
    if (std::exchange(left_out_, false)) since_.bits |= SinceLastStep::kLeftOut;
    for (auto const& head : heads_) head->begin(of_.step.number, weight_.value_or(-1), since_);
  }
  since_ = {};
}

}  // namespace ddp
