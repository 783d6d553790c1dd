#include "reducer/control_words.hpp"

#include <algorithm>

#include "ddp/core/text.hpp"

namespace ddp {
namespace {

// Step numbers are compared modulo this, so that sums of their squares over any number of ranks are exact.
constexpr std::uint64_t kStepCycle = 4093;

// Host memory of a lane, as its communicator wants to see it.
template <class T>
TensorView on_lane(std::span<T> words, ReducerLane const& lane) {
  TensorView view = view_of(words);
  view.device = lane.device;
  return view;
}

}  // namespace

ControlWords::ControlWords(ReducerLane lane, std::size_t parameters, bool every_rank)
    : lane_(lane),
      used_(parameters),
      any_(parameters),
      all_(every_rank ? parameters * static_cast<std::size_t>(lane.communicator->size()) : 0) {}

void ControlWords::begin(std::uint64_t step, double weight) {
  weight_ = weight;
  step_ = step;
  auto const number = static_cast<double>(step % kStepCycle);
  head_ = {weight >= 0 ? weight : 0.0, weight >= 0 ? 1.0 : 0.0, number, number * number};
  auto const words = std::span(&head_.weight, sizeof(Head) / sizeof(double));
  lane_.communicator->all_reduce(on_lane(words, lane_), ReduceOp::sum(), *lane_.comm_stream);
  host_stream(*lane_.comm_stream).enqueue([this] { check_head(); });
}

// Runs on the communication stream. Every rank has the same sums, so every rank throws or none does.
void ControlWords::check_head() {
  auto const ranks = static_cast<double>(lane_.communicator->size());
  bool const same_step =
      ranks * head_.step_squared == head_.step * head_.step;  // Cauchy-Schwarz: equal iff all are
  if (!same_step) {
    throw CommError(
        ErrorCode::mismatch,
        text("ranks are in different steps: rank ", lane_.communicator->rank(), " is in synchronised step ",
             step_,
             ", others are not; does a rank skip synchronize(), or use no_sync() where others do not?"));
  }
  if (head_.has_weight != 0 && head_.has_weight != ranks) {
    throw CommError(ErrorCode::mismatch,
                    text("set_weight() was called on ", head_.has_weight, " of ", ranks, " ranks in step ",
                         step_, "; call it on all of them (0 for a rank without samples) or on none"));
  }
  factor_ = head_.weight > 0 ? std::max(weight_, 0.0) / head_.weight : 0.0;
}

void ControlWords::finish(std::span<std::uint8_t const> used) {
  std::copy(used.begin(), used.end(), used_.begin());
  if (all_.empty()) {
    lane_.communicator->all_reduce(on_lane(std::span(used_), lane_), on_lane(std::span(any_), lane_),
                                   ReduceOp::max(), *lane_.comm_stream);
  } else {
    lane_.communicator->all_gather(on_lane(std::span(used_), lane_), on_lane(std::span(all_), lane_),
                                   *lane_.comm_stream);
  }
}

void ControlWords::fold() noexcept {
  std::size_t const parameters = used_.size();
  for (std::size_t p = 0; p < parameters; ++p) {
    any_[p] = 0;
    for (std::size_t i = p; i < all_.size(); i += parameters) any_[p] = any_[p] | all_[i];
  }
}

}  // namespace ddp
