#include "reducer/statistics/rank_times.hpp"

#include <algorithm>

#include "ddp/device/memory.hpp"
#include "ddp/device/tensor_ops.hpp"
#include "reducer/memory/step_words.hpp"

namespace ddp {
namespace {

static_assert(sizeof(RankTimes::Words) == 2 * sizeof(double));

std::size_t words_of_all(ReducerLane const& lane) {
  return 2 * static_cast<std::size_t>(lane.communicator->size());
}

}  // namespace

RankTimes::Slot::Slot(ReducerLane const& lane)
    : words(lane.device.kind == DeviceKind::cuda ? pinned_zeros(Shape{words_of_all(lane)}, DType::f64)
                                                 : Tensor::zeros(Shape{words_of_all(lane)}, DType::f64)),
      there(lane.device) {}

RankTimes::RankTimes(ReducerLane const& lane)
    : lane_(lane),
      mine_(step_words(Shape{2}, DType::f64, lane.device)),
      all_(step_words(Shape{words_of_all(lane)}, DType::f64, lane.device)) {
  slots_.reserve(kMostAhead);
  for (std::size_t i = 0; i < kMostAhead; ++i) slots_.emplace_back(lane);
}

void RankTimes::write(Words mine, Stream& stream) {
  std::array const values{mine.step, mine.communication_ms};
  if (lane_.device.kind == DeviceKind::cuda) {
    cuda::write_pair(mine_, values, stream);
  } else {  // the compute stream is the caller, who has waited for the last exchange
    std::ranges::copy(values, static_cast<double*>(mine_.view().data));
  }
}

void RankTimes::exchange() { lane_.communicator->all_gather(mine_, all_, *lane_.comm_stream); }

void RankTimes::keep(Stream& stream) {
  if (next_ - oldest_ == kMostAhead) return;
  Slot& slot = slots_[next_++ % kMostAhead];
  copy_elements(slot.words, all_, stream);
  slot.there.record(stream);
}

std::optional<std::span<RankTimes::Words const>> RankTimes::next() {
  if (oldest_ == next_ || !slots_[oldest_ % kMostAhead].there.reached()) return std::nullopt;
  Tensor const& words = slots_[oldest_++ % kMostAhead].words;
  return std::span(static_cast<Words const*>(words.view().data), words.view().count() / 2);
}

}  // namespace ddp
