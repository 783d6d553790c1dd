#include "ddp/parallel/step_graph.hpp"

#include <utility>

#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"
#include "device/stream/recorded_graph.hpp"

namespace ddp {

StepGraph::StepGraph(DistributedDataParallel& ddp, std::function<void()> step, Options options)
    : ddp_(ddp), step_(std::move(step)), warm_up_(options.warm_up) {
  require(step_ != nullptr, "StepGraph: expected a function that does one step, found none");
  require(warm_up_ >= 1, [&] { return text("StepGraph: expected warm_up of at least 1, found ", warm_up_); });
}

// The communicator frees the graph at its end, if it comes first.
StepGraph::~StepGraph() {
  if (graph_) graph_->destroy();
}

void StepGraph::run() {
  if (graph_ == nullptr && why_eager_.empty() && warm_up_-- == 0) {
    bool const on_gpu =
        !ddp_.parameters().empty() && ddp_.parameters()[0].value.device.kind == DeviceKind::cuda;
    auto graph = on_gpu ? cuda::make_recorded_graph() : nullptr;
    why_eager_ = ddp_.reducer().record(graph, step_);
    if (why_eager_.empty()) {
      graph_ = std::move(graph);
    } else {
      log(LogLevel::warning, text("steps run without a CUDA graph: ", why_eager_));
    }
  }
  if (graph_ != nullptr) {
    ddp_.reducer().replay(*graph_);
    ddp_.report_progress();
  } else {
    step_();
  }
}

}  // namespace ddp
