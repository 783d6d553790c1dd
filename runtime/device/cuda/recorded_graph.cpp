#include "ddp/device/recorded_graph.hpp"

#include <cuda_runtime_api.h>

#include <mutex>
#include <utility>

#include "ddp/core/text.hpp"
#include "ddp/device/cuda_stream.hpp"
#include "ddp/device/device_guard.hpp"
#include "device/cuda/backend.hpp"
#include "device/cuda/check.hpp"
#include "device/cuda/stream_state.hpp"

namespace ddp::cuda {
namespace {

class CudaGraph final : public RecordedGraph {
 public:
  CudaGraph() = default;
  ~CudaGraph() override { destroy(); }
  CudaGraph(CudaGraph const&) = delete;
  CudaGraph& operator=(CudaGraph const&) = delete;

  // Other threads of the program, and of libraries, may go on allocating and asking for events.
  void begin(Stream& stream) override {
    device_ = stream.device();
    if (is_default_stream(cuda_stream(stream).handle())) {
      throw Error(
          ErrorCode::invalid_state,
          "expected a compute stream that can be captured, found CUDA's default stream; compute on one "
          "that the program has made (WorldOptions::stream)");
    }
    check(cudaStreamBeginCapture(cuda_stream(stream).handle(), cudaStreamCaptureModeThreadLocal),
          "recording a step into a graph");
  }
  void end(Stream& stream) override {
    DeviceGuard const guard(device_);
    std::lock_guard const lock(mutex_);
    check(cudaStreamEndCapture(cuda_stream(stream).handle(), &graph_), "recording a step into a graph");
    check(cudaGraphInstantiate(&executable_, graph_, 0), "making a graph of a step ready");
    check(cudaGraphUpload(executable_, cuda_stream(stream).handle()), "making a graph of a step ready");
  }
  void abandon(Stream& stream) noexcept override {
    cudaGraph_t recorded = nullptr;
    static_cast<void>(cudaStreamEndCapture(cuda_stream(stream).handle(), &recorded));
    static_cast<void>(cudaGetLastError());
    if (recorded != nullptr) static_cast<void>(cudaGraphDestroy(recorded));
    destroy();
  }
  void launch(Stream& stream) override {
    std::lock_guard const lock(mutex_);
    if (executable_ == nullptr) {
      throw Error(ErrorCode::invalid_state,
                  "a step cannot be replayed: its graph went when its communicator ended");
    }
    check(cudaGraphLaunch(executable_, cuda_stream(stream).handle()), "replaying a step");
  }
  void destroy() noexcept override {
    std::lock_guard const lock(mutex_);
    if (graph_ == nullptr) return;
    end_on(device_, [this] {
      if (executable_ != nullptr)
        static_cast<void>(cudaGraphExecDestroy(std::exchange(executable_, nullptr)));
      static_cast<void>(cudaGraphDestroy(std::exchange(graph_, nullptr)));
    });
  }

 private:
  std::mutex mutex_;
  Device device_;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

}  // namespace

std::shared_ptr<RecordedGraph> make_recorded_graph() { return std::make_shared<CudaGraph>(); }

}  // namespace ddp::cuda
