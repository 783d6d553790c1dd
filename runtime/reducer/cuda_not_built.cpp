#include "ddp/core/text.hpp"
#include "reducer/control_words.hpp"

namespace ddp::cuda {

std::unique_ptr<ControlWords> make_control_words(ReducerLane const& lane, std::size_t /*parameters*/,
                                                 bool /*every_rank*/) {
  throw Error(ErrorCode::unsupported, text("gradients on ", lane.device, " need a build with CUDA"));
}

}  // namespace ddp::cuda
