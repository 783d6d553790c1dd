#include "ddp/core/text.hpp"
#include "reducer/step_head.hpp"
#include "reducer/used_parameters.hpp"

namespace ddp::cuda {
namespace {

[[noreturn]] void refuse(Device device) {
  throw Error(ErrorCode::unsupported, text("gradients on ", device, " need a build with CUDA"));
}

}  // namespace

std::unique_ptr<StepHead> make_step_head(ReducerLane const& lane) { refuse(lane.device); }

void write_used(TensorView const& words, std::span<std::uint8_t const> /*used*/, Stream& /*stream*/) {
  refuse(words.device);
}

}  // namespace ddp::cuda
