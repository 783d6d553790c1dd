#include "libtorch/graph/torch_graph.hpp"

#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <exception>
#include <mutex>
#include <optional>

#include "ddp/core/error.hpp"
#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"
#include "ddp/device/cuda_stream.hpp"
#include "libtorch/tensor_view.hpp"

namespace ddp::libtorch {
namespace {

// If the capture is broken, capture_end() throws, and leaves allocator and generators in capture mode.
class Capture : public at::cuda::CUDAGraph {
 public:
  using CUDAGraph::CUDAGraph;
  void forget(c10::DeviceIndex device, at::cuda::MempoolId_t pool) {
    try {
      capture_end();
    } catch (std::exception const&) {
      if (capture_ended_) return;  // it ended, but could not be instantiated
      leave_generators(captured_generator_states_);
      c10::cuda::CUDACachingAllocator::endAllocateToPool(device, pool);
      c10::cuda::CUDACachingAllocator::releasePool(device, pool);
    }
  }

 private:
  // A template, since newer versions of PyTorch do this in reset().
  template <class States>
  static void leave_generators(States& states) {
    for (auto& [state, increment] : states) {
      if constexpr (requires { state->capturing_ = false; }) state->capturing_ = false;
    }
  }
};

class TorchGraph final : public RecordedGraph {
 public:
  TorchGraph() = default;
  ~TorchGraph() override { destroy(); }
  TorchGraph(TorchGraph const&) = delete;
  TorchGraph& operator=(TorchGraph const&) = delete;

  void begin(Stream& stream) override {
    device_ = cuda_index(stream.device());
    // Frees memory of earlier steps: the graph's tensors live in a pool of its own.
    c10::cuda::CUDACachingAllocator::emptyCache();
    pool_ = at::cuda::graph_pool_handle();
    graph_.emplace(/*keep_graph=*/true);  // for handles()
    graph_->capture_begin(pool_, cudaStreamCaptureModeThreadLocal);
  }
  void end(Stream& stream) override {
    std::lock_guard const lock(mutex_);
    graph_->capture_end();
    replace_memsets(graph_->raw_cuda_graph(), stream.device());
    graph_->instantiate();
    is_ready_ = true;
  }
  void abandon(Stream& /*stream*/) noexcept override {
    try {
      if (graph_ && !is_ready_) graph_->forget(device_, pool_);
    } catch (std::exception const& error) {
      log(LogLevel::warning, text("giving up the recording of a step: ", error.what()));
    }
    static_cast<void>(cudaGetLastError());
    destroy();
  }
  void launch(Stream& stream) override {
    std::lock_guard const lock(mutex_);
    if (!is_ready_) throw_destroyed();
    c10::cuda::CUDAStreamGuard const guard(
        c10::cuda::getStreamFromExternal(cuda_stream(stream).handle(), device_));
    graph_->replay();
  }
  void with_handles(std::function<void(Handles const&)> const& use) override {
    std::lock_guard const lock(mutex_);
    if (!is_ready_) throw_destroyed();
    use({graph_->raw_cuda_graph(), graph_->raw_cuda_graph_exec()});
  }
  void destroy() noexcept override {
    std::lock_guard const lock(mutex_);
    is_ready_ = false;
    if (!graph_) return;
    try {
      c10::cuda::CUDAGuard const guard(device_);
      graph_.reset();
    } catch (std::exception const& error) {
      log(LogLevel::warning, text("freeing the graph of a step: ", error.what()));
    }
  }

 private:
  std::mutex mutex_;
  c10::DeviceIndex device_ = 0;
  at::cuda::MempoolId_t pool_{0, 0};
  std::optional<Capture> graph_;
  bool is_ready_ = false;
};

}  // namespace

std::shared_ptr<RecordedGraph> make_torch_graph() { return std::make_shared<TorchGraph>(); }

}  // namespace ddp::libtorch
