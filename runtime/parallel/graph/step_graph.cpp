#include "ddp/parallel/step_graph.hpp"

#include <utility>

#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"
#include "device/cuda/backend.hpp"
#include "parallel/ddp/reducer_access.hpp"

namespace ddp {
namespace {

bool is_on_gpu(DistributedDataParallel const& ddp) {
  auto const parameters = ddp.parameters();
  return !parameters.empty() && parameters[0].value.device.kind == DeviceKind::cuda;
}

}  // namespace

StepGraph::StepGraph(DistributedDataParallel& ddp, std::function<void()> step, Options options)
    : ddp_(ddp), step_(std::move(step)), options_(std::move(options)), warm_up_(options_.warm_up) {
  require(step_ != nullptr, "StepGraph: expected a function that does one step, found none");
  require(warm_up_ >= 1, [&] { return text("StepGraph: expected warm_up of at least 1, found ", warm_up_); });
}

StepGraph::~StepGraph() { record_again(); }

// The communicator frees the graph if it is destroyed before this object.
void StepGraph::record_again() noexcept {
  if (recorded_) recorded_->graph->destroy();
  recorded_.reset();
  why_eager_.clear();
  warm_up_ = options_.warm_up;
}

std::unique_ptr<RecordedStep> StepGraph::record() {
  auto recorded = std::make_unique<RecordedStep>();
  if (is_on_gpu(ddp_)) {
    recorded->graph = options_.make_graph ? options_.make_graph() : cuda::make_recorded_graph();
    require(recorded->graph != nullptr, "StepGraph: expected a graph of make_graph, found none");
  }
  why_eager_ = reducer_of(ddp_).record(*recorded, step_);
  if (why_eager_.empty()) return recorded;
  log(LogLevel::warning, text("steps run without a CUDA graph: ", why_eager_));
  return nullptr;
}

// The first synchronised step gives gradients other places.
void StepGraph::run() {
  bool const has_steps = reducer_of(ddp_).steps() > 0;
  if (!has_steps) record_again();  // after World::rebuild() too: ranks may have been a step apart
  if (warm_up_ > 0) {
    --warm_up_;
  } else if (!recorded_ && why_eager_.empty() && has_steps) {
    recorded_ = record();
  }
  if (!recorded_) return step_();
  ddp_.settle_last_step();
  reducer_of(ddp_).replay(*recorded_);
  ddp_.report_progress();
}

}  // namespace ddp
