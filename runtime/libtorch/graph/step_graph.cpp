#include "ddp/libtorch/step_graph.hpp"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

#include <exception>
#include <optional>
#include <string>
#include <utility>

#include "ddp/core/text.hpp"
#include "libtorch/autograd_nodes.hpp"
#include "libtorch/batch_norm/statistics_exchange.hpp"
#include "libtorch/ddp/engine.hpp"
#include "libtorch/graph/operation_trail.hpp"
#include "libtorch/graph/torch_graph.hpp"

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
    if (*engine_->no_sync_depth() > 0) {
      throw Error(ErrorCode::invalid_state,
                  "ddp::libtorch::StepGraph::run() under no_sync(): the guard belongs into the step");
    }
    engine_->run_aside([this] {
      if (graph_.is_recorded()) engine_->check_replay(recorded_);
      graph_.run();
      if (graph_.is_recorded()) engine_->replayed(recorded_);
    });
    before_.reset();
  }
  [[nodiscard]] ddp::StepGraph& graph() noexcept { return graph_; }

 private:
  void call() {
    engine_->renew_accumulators();
    if (engine_->is_capturing()) {
      before_ = engine_->sums();
      record();
      return;
    }
    if (auto const before = std::exchange(before_, std::nullopt)) engine_->restore(*before);
    step_();
  }
  void record() {
    OperationTrail const trail;
    try {
      recorded_ = engine_->record(step_);
    } catch (Error const&) {
      throw;
    } catch (std::exception const& error) {
      throw Error(ErrorCode::unsupported, trail.where() + error.what());
    }
  }

  std::shared_ptr<DistributedDataParallel::Engine> engine_;
  std::function<void()> step_;
  std::optional<DistributedDataParallel::Engine::Sums> before_;  // a recording
  DistributedDataParallel::Engine::Recorded recorded_;
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

// A loss outside of the step may keep an old autograd graph alive. Its nodes that accumulate gradients run on
// the stream that was current when they were made, and a backward pass switches to that stream, which is not
// allowed while it is recorded. So such nodes are replaced, unless they have hooks of the program.
void DistributedDataParallel::Engine::renew_accumulators() {
  namespace autograd = torch::autograd::impl;
  for (Trained const& trained : trained_) {
    at::Tensor const& tensor = trained.parameter.tensor;
    auto const node = tensor.is_cuda() ? autograd::try_get_grad_accumulator(tensor) : nullptr;
    if (!node || !node->pre_hooks().empty() || !node->post_hooks().empty()) continue;
    c10::impl::VirtualGuardImpl const guard(tensor.device().type());
    if (node->stream() != guard.getStream(tensor.device())) drop_accumulator(tensor);
  }
}

DistributedDataParallel::Engine::Recorded DistributedDataParallel::Engine::record(
    std::function<void()> const& step) {
  if (!StatisticsExchange::norms_of(*module_).empty()) {
    throw Error(
        ErrorCode::unsupported,
        "the module has a SyncBatchNorm, whose messages nobody would watch in a replay; use BatchNorm");
  }
  Recorded recorded;
  for (Trained const& trained : trained_) recorded.before.push_back(trained.unsent);
  recorded.here.assign(trained_.size(), false);
  recording_ = &recorded;
  auto const ends = [this] {
    recording_ = nullptr;
    rest_given_ = 0;  // a failed recording has not ended its step
    changes_->forget();
  };
  try {
    step();
    ends();
  } catch (...) {
    ends();
    throw;
  }
  if (!recorded.sends && !recorded.loose.empty()) {
    throw Error(ErrorCode::invalid_state,
                text("micro-steps cannot add up in replays: the gradient of \"", recorded.loose,
                     "\" is not in its bucket; use zero_grad(false), which keeps its memory"));
  }
  return recorded;
}

void DistributedDataParallel::Engine::record_micro_step(std::size_t index, at::Tensor const& gradient) {
  Trained const& trained = trained_[index];
  if (!gradient.defined() || gradient.const_data_ptr() != trained.gradient.data)
    recording_->loose = trained.parameter.name;
  auto const guard = runtime_->no_sync();
  runtime_->gradient_ready(index);
}

// While a step is recorded, it is not known whether other ranks use the parameter.
void DistributedDataParallel::Engine::require_used_before(Trained const& trained) const {
  if (trained.reduced) return;
  throw Error(ErrorCode::invalid_state,
              text("the recorded step uses parameter \"", trained.parameter.name,
                   "\", which no rank used in the step before: record a step that uses the parameters of the "
                   "others, or set DistributedDataParallelOptions::skip_unused to false"));
}

void DistributedDataParallel::Engine::check_replay(Recorded const& recorded) const {
  for (std::size_t p = 0; recorded.sends && p < trained_.size(); ++p) {
    if (recorded.here[p] || recorded.before[p] == trained_[p].unsent) continue;
    throw Error(ErrorCode::invalid_state,
                text("micro-steps before this replay ", trained_[p].unsent ? "used" : "did not use",
                     " parameter \"", trained_[p].parameter.name, "\", and those before the recorded step ",
                     recorded.before[p] ? "did" : "did not",
                     ": run this step without the graph, or call record_again()"));
  }
}

void DistributedDataParallel::Engine::replayed(Recorded const& recorded) {
  changes_->forget();
  for (std::size_t p = 0; p < trained_.size(); ++p) {
    if (recorded.sends) {
      trained_[p].unsent = false;
    } else if (recorded.here[p]) {
      trained_[p].unsent = true;
    }
  }
}

DistributedDataParallel::Engine::Sums DistributedDataParallel::Engine::sums() const {
  Sums sums;
  for (Trained const& trained : trained_) {
    sums.gradients.push_back(trained.parameter.tensor.grad());
    sums.unsent.push_back(trained.unsent);
  }
  return sums;
}

void DistributedDataParallel::Engine::restore(Sums const& sums) {
  for (std::size_t p = 0; p < trained_.size(); ++p) {
    trained_[p].parameter.tensor.mutable_grad() = sums.gradients[p];
    trained_[p].unsent = sums.unsent[p];
  }
}

}  // namespace ddp::libtorch
