#include "ddp/core/error.hpp"
#include "libtorch/gpu_streams.hpp"
#include "libtorch/graph/torch_graph.hpp"

namespace ddp::libtorch {

std::unique_ptr<GpuStreams> GpuStreams::of(Device /*own*/) { return std::make_unique<GpuStreams>(); }

void require_one_nccl() {}

std::shared_ptr<RecordedGraph> make_torch_graph() {
  throw Error(ErrorCode::unsupported, "a recorded step needs ddp::libtorch and PyTorch built with CUDA");
}

}  // namespace ddp::libtorch
