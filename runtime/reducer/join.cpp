// R11: ranks that have run out of data take part in the steps of the others.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "ddp/core/text.hpp"
#include "reducer/reducer_impl.hpp"

namespace ddp {

void Reducer::Impl::join_others(std::function<void()> const& update,
                                std::function<void()> const& before_step) {
  require_usable();
  require(update != nullptr, "join(): expected what the program does after a step, as optimizer.step()");
  if (!has_data_) {
    throw Error(
        ErrorCode::invalid_state,
        "join(): set ReducerOptions::uneven, so that ranks tell each other in each step who has data");
  }
  if (in_step_ || no_sync_depth_ > 0) {
    throw Error(ErrorCode::invalid_state,
                text("join() ", in_step_ ? "in the middle of a synchronised step: call synchronize() first"
                                         : "under no_sync(): end the guard first"));
  }
  refuse_capture();
  bool goes_on = true;
  while (goes_on) {
    if (before_step) before_step();
    joined_ = true;
    try {
      goes_on = begin_shadow_step();
      if (goes_on) synchronize();
    } catch (...) {
      joined_ = false;
      throw;
    }
    joined_ = false;
    if (goes_on) update();
  }
}

// False if no rank has data: then the step is none.
bool Reducer::Impl::begin_shadow_step() {
  bool goes_on = false;
  or_fail([&] {
    leave_out_micro_steps();
    begin_step();
    has_data_->fetch();
    goes_on = has_data_->by_any(0);
    if (goes_on) return;
    for (auto const& head : heads_) head->settle();
    for (ReducerLane const& lane : lanes_) lane.compute_stream->wait(*lane.comm_stream);
    weight_ = -1;
    in_step_ = false;
  });
  return goes_on;
}

// Data ended in the middle of an accumulation: what was added up so far belongs to no step.
void Reducer::Impl::leave_out_micro_steps() {
  tracker_.reset();
  std::fill(summed_elsewhere_.begin(), summed_elsewhere_.end(), std::uint8_t{0});
}

// Every rank knows the same, so every rank throws the same error.
void Reducer::Impl::throw_uneven() {
  std::vector<Rank> without;
  for (std::size_t r = 0; r < group_.size(); ++r) {
    if (!has_data_->by(r, 0)) without.push_back(group_[r]);
  }
  if (without.empty()) return;
  let_others_read();
  throw Error(ErrorCode::invalid_state,
              text("rank", without.size() == 1 ? " " : "s ", ddp::join(without, ", "),
                   " called join() before synchronised step ", steps_,
                   ", for which others have data: give every rank as many batches, or set "
                   "ReducerOptions::uneven to divide_by_live or divide_by_all"));
}

}  // namespace ddp
