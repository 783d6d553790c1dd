// How a wrapped module goes on when its World is rebuilt.
#include <torch/nn/module.h>

#include "libtorch/batch_norm/statistics_exchange.hpp"
#include "libtorch/ddp/engine.hpp"

namespace ddp::libtorch {

AutogradSupport::Following DistributedDataParallel::Engine::following() {
  return {.why_not = [this]() -> std::string {
            if (*no_sync_depth_ == 0) return {};
            return "a guard of no_sync() lives, of micro-steps that are lost; end it before";
          },
          .abort =
              [this](std::string_view reason) {
                StatisticsExchange::abort_those_of(*module_, std::string(reason));
              },
          .settle = [this] { settle(); },
          .go_on = [this] { go_on_rebuilt(); }};
}

// torch::load() may have given parameters and buffers memory that the runtime does not know yet.
void DistributedDataParallel::Engine::settle() {
  for (std::size_t p = 0; p < trained_.size(); ++p) check_value(p);
  buffers_->mark_all(*runtime_);
}

// As after the constructor: no gradient is there, and nothing is known of what the program does between
// steps. A pass that broke may still be in the hands of autograd, with its end: that finds a closed pass.
void DistributedDataParallel::Engine::go_on_rebuilt() {
  for (Trained& trained : trained_) {
    at::Tensor const& parameter = trained.parameter.tensor;
    trained.held.reset();
    trained.reduced = trained.unsent = false;
    parameter.mutable_grad().reset();
    parameter.unsafeGetTensorImpl()->bump_version();  // the runtime has written without PyTorch
  }
  ++step_;  // of the broken one no gradient counts
  steps_before_ = runtime_->steps();
  changes_->step_ended();
  changes_->forget();
  buffers_->start_again();
  tell_of_buffers();
  pass_->close();
  watch_passes();
}

}  // namespace ddp::libtorch
