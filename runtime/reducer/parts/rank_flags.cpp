#include "reducer/parts/rank_flags.hpp"

#include <algorithm>

#include "ddp/device/tensor_ops.hpp"
#include "reducer/memory/step_words.hpp"

namespace ddp {
RankFlags::RankFlags(ReducerLane const& lane, std::size_t items, bool every_rank)
    : lane_(lane), items_(items), every_rank_(every_rank) {
  carry(0);
}

void RankFlags::carry(std::size_t flags) {
  std::size_t const mine = items_ + flags;
  std::size_t const all = every_rank_ ? mine * static_cast<std::size_t>(lane_.communicator->size()) : mine;
  said_.assign(mine, 0);
  mine_ = step_words(Shape{mine}, DType::u8, lane_.device);
  all_ = step_words(Shape{all}, DType::u8, lane_.device);
  fetched_.assign(all, 0);
}

void RankFlags::exchange(std::span<std::uint8_t const> items) {
  is_fetched_ = false;
  std::ranges::copy(items, said_.begin());
  if (lane_.device.kind == DeviceKind::cuda) {
    cuda::write_flags(mine_, said_, *lane_.comm_stream);
  } else {  // the compute stream is the caller, who has waited for the last exchange
    std::ranges::copy(said_, static_cast<std::uint8_t*>(mine_.view().data));
  }
  if (every_rank_) {
    lane_.communicator->all_gather(mine_, all_, *lane_.comm_stream);
  } else {
    lane_.communicator->all_reduce(mine_, all_, ReduceOp::max(), *lane_.comm_stream);
  }
}

void RankFlags::fetch() {
  if (is_fetched_) return;
  lane_.comm_stream->expect_wait();
  copy_elements(view_of(std::span(fetched_)), all_, *lane_.comm_stream);
  lane_.comm_stream->synchronize();
  is_fetched_ = true;
}

bool RankFlags::by_any(std::size_t item) const noexcept {
  for (std::size_t i = item; i < fetched_.size(); i += said_.size()) {
    if (fetched_[i] != 0) return true;
  }
  return false;
}

}  // namespace ddp
