#include "ddp/device/recorded_graph.hpp"

#include <cuda_runtime_api.h>

#include <mutex>
#include <string_view>
#include <utility>

#include "ddp/device/cuda_stream.hpp"
#include "ddp/device/device_guard.hpp"
#include "device/cuda/backend.hpp"
#include "device/cuda/check.hpp"
#include "device/cuda/graph_nodes.hpp"
#include "device/cuda/stream/stream_state.hpp"

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
    replace_memsets(graph_, device_);
    check(cudaGraphInstantiate(&executable_, graph_, cudaGraphInstantiateFlagUseNodePriority),
          "making a graph of a step ready");
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
    if (executable_ == nullptr) throw_destroyed();
    check(cudaGraphLaunch(executable_, cuda_stream(stream).handle()), "replaying a step");
  }
  void with_handles(std::function<void(Handles const&)> const& use) override {
    std::lock_guard const lock(mutex_);
    if (executable_ == nullptr) throw_destroyed();
    use({graph_, executable_});
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

namespace ddp {
namespace {

std::unordered_multimap<cudaEvent_t, cudaGraphNode_t> event_nodes_of(cudaGraph_t graph) {
  constexpr std::string_view kLooking = "looking at a recorded step";
  std::unordered_multimap<cudaEvent_t, cudaGraphNode_t> found;
  for (auto* const node : cuda::nodes_of(graph, cudaGraphNodeTypeEventRecord, kLooking)) {
    cudaEvent_t event = nullptr;
    cuda::check(cudaGraphEventRecordNodeGetEvent(node, &event), kLooking);
    found.emplace(event, node);
  }
  return found;
}

}  // namespace

void RecordedGraph::set_event(Event const& recorded, Event const& now) {
  with_handles([&](Handles const& handles) {
    if (event_nodes_.empty()) event_nodes_ = event_nodes_of(handles.graph);
    auto const [first, end] = event_nodes_.equal_range(recorded.handle());
    if (first == end) throw Error(ErrorCode::invalid_state, "an event is not in the recorded step");
    for (auto node = first; node != end; ++node) {
      cuda::check(cudaGraphExecEventRecordNodeSetEvent(handles.executable, node->second, now.handle()),
                  "choosing an event of a replay");
    }
  });
}

void RecordedGraph::throw_destroyed() {
  throw Error(ErrorCode::invalid_state,
              "a step cannot be replayed: its graph went when its communicator ended");
}

}  // namespace ddp
