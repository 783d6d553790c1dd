#include "ddp/libtorch/step_graph.hpp"

#include <torch/nn/module.h>

#include <utility>
#include <vector>

#include "ddp/core/error.hpp"
#include "libtorch/batch_norm/statistics_exchange.hpp"
#include "libtorch/engine.hpp"
#include "libtorch/torch_graph.hpp"

namespace ddp::libtorch {
namespace {

StepGraphOptions with_torch_graph(StepGraphOptions options) {
  require(!options.make_graph, "ddp::libtorch::StepGraph: leave make_graph empty, PyTorch records the step");
  options.make_graph = make_torch_graph;
  return options;
}

}  // namespace

class StepGraph::Impl {
 public:
  Impl(std::shared_ptr<DistributedDataParallel::Engine> engine, std::function<void()> step, Options options)
      : engine_(std::move(engine)),
        step_(std::move(step)),
        graph_(engine_->runtime(), step_ ? [this] { call(); } : std::function<void()>(),
               with_torch_graph(std::move(options))) {}

  void run() {
    engine_->run_aside([this] { graph_.run(); });
    before_.clear();
  }
  [[nodiscard]] ddp::StepGraph& graph() noexcept { return graph_; }

 private:
  // A recording that fails runs nothing, so the gradients that the program sees afterwards are those before.
  void call() {
    if (engine_->is_capturing()) {
      before_ = engine_->gradients();
      engine_->record(step_);
      return;
    }
    if (!before_.empty()) engine_->set_gradients(before_);
    step_();
  }

  std::shared_ptr<DistributedDataParallel::Engine> engine_;
  std::function<void()> step_;
  std::vector<at::Tensor> before_;  // gradients, while a step is recorded
  ddp::StepGraph graph_;
};

StepGraph::StepGraph(DistributedDataParallel& ddp, std::function<void()> step, Options options)
    : impl_(std::make_unique<Impl>(ddp.engine_, std::move(step), std::move(options))) {}
StepGraph::~StepGraph() = default;

void StepGraph::run() { impl_->run(); }
bool StepGraph::is_recorded() const noexcept { return impl_->graph().is_recorded(); }
std::string const& StepGraph::why_eager() const noexcept { return impl_->graph().why_eager(); }
void StepGraph::record_again() noexcept { impl_->graph().record_again(); }

// ---- what the wrapped module does for it

void DistributedDataParallel::Engine::run_aside(std::function<void()> const& work) {
  streams_->run_aside([&] {
    if (Stream* const stream = streams_->changed()) runtime_->compute_on(*stream);
    work();
  });
}

void DistributedDataParallel::Engine::record(std::function<void()> const& step) {
  if (!StatisticsExchange::norms_of(*module_).empty()) {
    throw Error(
        ErrorCode::unsupported,
        "the module has a SyncBatchNorm, whose messages nobody would watch in a replay; use BatchNorm");
  }
  recording_ = true;
  try {
    step();
    recording_ = false;
  } catch (...) {
    recording_ = false;
    throw;
  }
}

std::vector<at::Tensor> DistributedDataParallel::Engine::gradients() const {
  std::vector<at::Tensor> list;
  for (auto const& trained : trained_) list.push_back(trained->parameter.tensor.grad());
  return list;
}

void DistributedDataParallel::Engine::set_gradients(std::vector<at::Tensor> const& gradients) {
  for (std::size_t p = 0; p < trained_.size(); ++p) {
    trained_[p]->parameter.tensor.mutable_grad() = gradients[p];
  }
}

}  // namespace ddp::libtorch
