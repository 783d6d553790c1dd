#include "reducer/used_parameters.hpp"

#include <algorithm>

#include "ddp/device/tensor_ops.hpp"
#include "reducer/memory/step_words.hpp"

namespace ddp {
UsedParameters::UsedParameters(ReducerLane const& lane, std::size_t parameters, bool every_rank)
    : lane_(lane),
      parameters_(parameters),
      every_rank_(every_rank),
      mine_(step_words(Shape{parameters}, DType::u8, lane.device)),
      all_(step_words(
          Shape{every_rank ? parameters * static_cast<std::size_t>(lane.communicator->size()) : parameters},
          DType::u8, lane.device)),
      fetched_(all_.view().count()) {}

void UsedParameters::exchange(std::span<std::uint8_t const> used) {
  is_fetched_ = false;
  if (lane_.device.kind == DeviceKind::cuda) {
    cuda::write_used(mine_, used, *lane_.comm_stream);
  } else {  // the compute stream is the caller, who has waited for the last exchange
    std::copy(used.begin(), used.end(), static_cast<std::uint8_t*>(mine_.view().data));
  }
  if (every_rank_) {
    lane_.communicator->all_gather(mine_, all_, *lane_.comm_stream);
  } else {
    lane_.communicator->all_reduce(mine_, all_, ReduceOp::max(), *lane_.comm_stream);
  }
}

void UsedParameters::fetch() {
  if (is_fetched_) return;
  lane_.comm_stream->expect_wait();
  copy_elements(view_of(std::span(fetched_)), all_, *lane_.comm_stream);
  lane_.comm_stream->synchronize();
  is_fetched_ = true;
}

bool UsedParameters::by_any(std::size_t parameter) const noexcept {
  for (std::size_t i = parameter; i < fetched_.size(); i += parameters_) {
    if (fetched_[i] != 0) return true;
  }
  return false;
}

}  // namespace ddp
