// What a step says of itself (R20).
#include <cstddef>
#include <exception>
#include <utility>

#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"
#include "reducer/reducer_impl.hpp"

namespace ddp {

void Reducer::Impl::begin_forward() {
  require_usable();
  if (!statistics_ || in_step_) return;
  refuse_capture();
  statistics_->times().begin_forward();
}

void Reducer::Impl::end_measured_step() {
  StepStatistics counts;
  counts.step = steps_;
  counts.buckets = plan_->buckets().size();
  counts.messages = messages();
  for (std::size_t b = 0; b < counts.buckets; ++b) {
    for (TensorView const& message : memory_.messages(b)) counts.bytes.value += message.bytes();
  }
  counts.rebuilds = rebuilds_;
  auto const order = tracker_.arrival_order();
  counts.order.assign(order.begin(), order.end());
  statistics_->times().end_step(std::move(counts));
  if (recording_ == nullptr) report_measured();
}

void Reducer::Impl::report_measured() {
  statistics_->collect();
  auto finished = statistics_->take();
  if (report_ && !finished.empty()) report_(std::move(finished));
}

// When the streams have reached all that they will reach.
void Reducer::Impl::report_rest() noexcept {
  if (!statistics_ || !report_) return;
  try {
    try {
      statistics_->collect();
    } catch (std::exception const& error) {  // of a GPU that failed; what was read before is known
      log(LogLevel::debug, error.what());
    }
    auto rest = statistics_->take_rest();
    if (!rest.empty()) report_(std::move(rest));
  } catch (std::exception const& error) {
    log(LogLevel::warning, text("the last statistics of ", name_, " are missing: ", error.what()));
  }
}

}  // namespace ddp
