#include "ddp/core/error.hpp"
#include "libtorch/gpu_streams.hpp"
#include "libtorch/torch_graph.hpp"

namespace ddp::libtorch {

class GpuStreams::Known {};

GpuStreams::GpuStreams(Device /*own*/) {}
GpuStreams::~GpuStreams() = default;
Stream* GpuStreams::changed() { return nullptr; }
Stream* GpuStreams::current() { return nullptr; }
bool GpuStreams::is_capturing() const { return false; }
void GpuStreams::run_on(Stream& /*stream*/, std::function<void()> const& work) { work(); }
void GpuStreams::run_aside(std::function<void()> const& work) { work(); }

void require_one_nccl() {}

std::shared_ptr<RecordedGraph> make_torch_graph() {
  throw Error(ErrorCode::unsupported, "a recorded step needs ddp::libtorch and PyTorch built with CUDA");
}

}  // namespace ddp::libtorch
