#include "libtorch/ddp/engine.hpp"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/utils/grad_layout_contract.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <bit>
#include <exception>
#include <utility>

#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"
#include "libtorch/batch_norm/statistics_exchange.hpp"
#include "parallel/world/lost_rank.hpp"

namespace ddp::libtorch {
namespace {

std::string form_of(at::Tensor const& tensor) {
  return text(c10::toString(tensor.scalar_type()), tensor.sizes(), " on ", tensor.device().str());
}

bool same_kind(at::Tensor const& a, at::Tensor const& b) {
  return a.scalar_type() == b.scalar_type() && a.device() == b.device() && a.sizes() == b.sizes();
}

// Whether `tensor` can lie where `like` does, as it is.
bool in_form_of(at::Tensor const& tensor, at::Tensor const& like) {
  return tensor.strides() == like.strides() || torch::autograd::utils::obeys_layout_contract(tensor, like);
}

}  // namespace

// ---- in backward()

void DistributedDataParallel::Engine::accumulated(std::size_t index, at::Tensor const& parameter) {
  if (!runtime_) return;
  Trained& trained = trained_[index];
  bool const is_sent = *no_sync_depth_ == 0;
  if (is_sent) pass_->enter();  // first, so that what throws below reaches every rank
  if (recording_ != nullptr) {
    recording_->here[index] = true;
  } else {
    require_cleared(index, changes_->accumulated(index));
  }
  if (!is_sent) {
    trained.unsent = true;
    if (recording_ != nullptr) record_micro_step(index, parameter.grad());
    return;
  }
  if (recording_ == nullptr) changes_->tell(index, AutogradSupport(*runtime_));
  if (Stream* const stream = streams_->changed()) runtime_->compute_on(*stream);
  give(index, parameter.mutable_grad());
}

void DistributedDataParallel::Engine::give(std::size_t index, at::Tensor& gradient) {
  Trained& trained = trained_[index];
  trained.unsent = false;
  check_value(index);
  if (!gradient.defined()) {  // a custom function gave none
    runtime_->no_gradient(index);
    return;
  }
  trained.arrived = step_;
  bool const is_bound = gradient.unsafeGetTensorImpl() == trained.bound.unsafeGetTensorImpl();
  // Module::zero_grad(false) makes grad() another tensor of the same memory.
  if (is_bound || (gradient.layout() == at::kStrided && gradient.const_data_ptr() == trained.gradient.data)) {
    runtime_->gradient_ready(index);
    return;
  }
  at::Tensor const source = sendable(trained, gradient);
  // If this gradient may be accumulated again in this step, it must stay where autograd adds to it.
  if (!options_.runtime.allow_repeated_ready) gradient = trained.bound;
  runtime_->gradient_ready(index, as_source(trained, source));
}

Tensor DistributedDataParallel::Engine::as_source(Trained const& trained, at::Tensor const& source) {
  TensorView view = trained.gradient;
  view.data = source.data_ptr();
  return {view, std::make_shared<at::Tensor>(source)};
}

// A rank that does not use a parameter gives its gradient of earlier steps, to which other ranks have added.
// The average will take its place in the bucket; so it is copied, in case that no rank uses the parameter.
void DistributedDataParallel::Engine::hold(std::size_t index, at::Tensor const& gradient) {
  Trained& trained = trained_[index];
  trained.held = sendable(trained, gradient);
  if (trained.held.const_data_ptr() == trained.gradient.data) trained.held = trained.held.clone();
  AutogradSupport(*runtime_).no_gradient(index, as_source(trained, trained.held));
}

// `gradient` itself where it has the parameter's form.
at::Tensor DistributedDataParallel::Engine::sendable(Trained const& trained,
                                                     at::Tensor const& gradient) const {
  std::string const& name = trained.parameter.name;
  at::NoGradGuard const no_graph;
  if (gradient.layout() != at::kStrided) {
    if (options_.sparse == Options::Sparse::densify && gradient.is_sparse()) {
      return sendable(trained, gradient.to_dense());
    }
    throw Error(ErrorCode::unsupported,
                text("the gradient of parameter \"", name, "\" has PyTorch's layout ", gradient.layout(),
                     ", which is not averaged over ranks: make the layer with sparse(false), or set "
                     "DistributedDataParallelOptions::sparse to densify"));
  }
  if (gradient.requires_grad()) {
    throw Error(ErrorCode::unsupported,
                text("the gradient of parameter \"", name,
                     "\" has a graph of its own, which averages would lose: backward() was called with "
                     "create_graph. Call torch::autograd::grad() for the inner gradient, or backward() under "
                     "no_sync()"));
  }
  if (!same_kind(gradient, trained.bound)) refuse_change(trained, gradient, "its gradient");
  if (in_form_of(gradient, trained.bound) && !gradient.is_conj() && !gradient.is_neg()) return gradient;
  return at::empty_strided(trained.bound.sizes(), trained.bound.strides(), gradient.options())
      .copy_(gradient);
}

void DistributedDataParallel::Engine::refuse_change(Trained const& trained, at::Tensor const& now,
                                                    char const* what) const {
  throw Error(ErrorCode::invalid_state,
              text("parameter \"", trained.parameter.name, "\" was ", form_of(trained.kept), " strides ",
                   trained.kept.strides(), " when the module was wrapped, and ", what, " is ", form_of(now),
                   " strides ", now.strides(), " now. Convert and move a module before it is wrapped"));
}

// ---- at its end

void DistributedDataParallel::Engine::synchronize() {
  if (*no_sync_depth_ == 0) end_step();
}

// Gives the runtime the gradients that no hook has given.
void DistributedDataParallel::Engine::give_rest() {
  if (rest_given_ == step_) return;
  rest_given_ = step_;
  check_module();
  // The caller's stream: the pass may have run in a thread of autograd, on other streams.
  if (Stream* const stream = streams_->changed()) runtime_->compute_on(*stream);
  for (std::size_t p = 0; p < trained_.size(); ++p) {
    Trained& trained = trained_[p];
    at::Tensor& gradient = trained.parameter.tensor.mutable_grad();
    if (std::exchange(trained.unsent, false) && gradient.defined()) give(p, gradient);
    if (trained.arrived == step_) continue;
    check_value(p);
    if (!gradient.defined()) continue;
    require_cleared(p, recording_ != nullptr || !changes_->has_left(p));
    hold(p, gradient);
  }
}

void DistributedDataParallel::Engine::send_rest() {
  or_abandon([this] {
    give_rest();
    AutogradSupport(*runtime_).send_rest();
  });
}

void DistributedDataParallel::Engine::end_step() {
  if (recording_ != nullptr) recording_->sends = true;
  or_abandon([this] {
    give_rest();
    runtime_->synchronize();
    go_on();
  });
}

// After a step, of this rank or in join().
void DistributedDataParallel::Engine::go_on() {
  bind_gradients();
  if (update_) update_rest();
  changes_->step_ended();
  ++step_;
  if (options_.runtime.buffer_sync == BufferSync::never) return;
  if (recording_ != nullptr) {  // other ranks' flags are not known; ranks compare what they record
    std::vector<std::uint8_t> own(buffers_->flags());
    buffers_->say(own, true);
    buffers_->mark(*runtime_, own);
  } else {
    buffers_->mark(*runtime_, AutogradSupport(*runtime_).told_with_tail());
  }
  try {
    runtime_->sync_buffers();
  } catch (CommError const& loss) {
    if (!update_ || recording_ != nullptr || !is_of_a_lost_rank(loss.failure())) throw;
    // The optimizer has updated already. Thrown here, the error would make the program do this step again;
    // the next step throws it.
    log(LogLevel::warning, text("after the update of a step, while buffers were sent: ", loss.what()));
  }
}

void DistributedDataParallel::Engine::begin_forward() {
  if (Stream* const stream = streams_->changed()) runtime_->compute_on(*stream);
  runtime_->begin_forward();
}

void DistributedDataParallel::Engine::join(std::function<void()> const& update) {
  if (Stream* const stream = streams_->changed()) runtime_->compute_on(*stream);
  require(update != nullptr, "join(): expected what the program does after a step, as optimizer.step()");
  runtime_->join([&] {
    drop_gradients_of_no_step();
    go_on();
    update();
  });
}

// On the other ranks zero_grad() has removed the gradients of parameters that no rank used. This rank still
// has those of its last step, or of micro-steps that were not sent.
void DistributedDataParallel::Engine::drop_gradients_of_no_step() {
  for (std::size_t p = 0; p < trained_.size(); ++p) {
    trained_[p].unsent = false;
    if (!has_gradient(p)) trained_[p].parameter.tensor.mutable_grad().reset();
  }
}

// Other ranks may wait for this one in a bucket, or in a SyncBatchNorm.
void DistributedDataParallel::Engine::abandon(std::string const& why) noexcept {
  AutogradSupport(*runtime_).abandon_step(why);
  StatisticsExchange::abort_those_of(*module_, why);
}

bool DistributedDataParallel::Engine::has_gradient(std::size_t index) {
  Trained& trained = trained_[index];
  if (!options_.skip_unused || trained.arrived == step_) {
    if (recording_ != nullptr && options_.skip_unused) require_used_before(trained);
    trained.reduced = true;
  } else if (recording_ == nullptr) {
    trained.reduced = runtime_->has_gradient(index);
  }
  return trained.reduced;
}

void DistributedDataParallel::Engine::bind_gradients() {
  for (std::size_t p = 0; p < trained_.size(); ++p) {
    Trained& trained = trained_[p];
    at::Tensor const held = std::exchange(trained.held, {});
    at::Tensor& gradient = trained.parameter.tensor.mutable_grad();
    if (!has_gradient(p) && (options_.runtime.clip_norm == 0 || !held.defined())) {
      if (held.defined()) gradient = held;  // with clip_norm it is clipped with the others, in its bucket
      continue;
    }
    if (gradient.unsafeGetTensorImpl() != trained.bound.unsafeGetTensorImpl()) gradient = trained.bound;
  }
}

void DistributedDataParallel::Engine::sync_buffers() {
  if (*no_sync_depth_ > 0 || options_.runtime.buffer_sync == BufferSync::never) return;
  if (Stream* const stream = streams_->changed()) runtime_->compute_on(*stream);
  buffers_->mark_all(*runtime_);
  runtime_->sync_buffers();
}

// A list of all parameters takes as long as a small step: it is made in steps 1, 2, 4, 8 and so on.
void DistributedDataParallel::Engine::check_module() {
  for (ModuleTensor const& frozen : tensors_.frozen) {
    if (!frozen.tensor.requires_grad()) continue;
    throw Error(
        ErrorCode::invalid_state,
        text("parameter \"", frozen.name,
             "\" did not require a gradient when the module was wrapped, and does now: its gradient would "
             "not be averaged. Wrap the module again after such a change"));
  }
  if (!std::has_single_bit(step_)) return;
  std::size_t const known = tensors_.trained.size() + tensors_.frozen.size();
  ModuleTensors const now = tensors_of(*module_);
  if (now.trained.size() + now.frozen.size() == known) return;
  throw Error(ErrorCode::invalid_state,
              text("the module had ", known, " parameters when it was wrapped, and has ",
                   now.trained.size() + now.frozen.size(),
                   " now. Register all of them first, or wrap the module again after such a change"));
}

// torch::load() gives parameters new memory. Checked when a gradient arrives, since the parameter is at hand
// then.
void DistributedDataParallel::Engine::check_value(std::size_t index) {
  Trained& trained = trained_[index];
  at::Tensor const& now = trained.parameter.tensor;
  if (now.const_data_ptr() == trained.value.data && now.scalar_type() == trained.kept.scalar_type()) return;
  if (!same_kind(now, trained.kept) || !in_form_of(now, trained.kept)) refuse_change(trained, now, "it");
  if (is_sharded()) {
    throw Error(
        ErrorCode::invalid_state,
        text("parameter \"", trained.parameter.name,
             "\" lies in other memory than the runtime gave it, as after torch::load() or set_data(): "
             "with Options::runtime.sharding the values of a bucket lie together. Load before the "
             "module is wrapped, or copy new values into the parameter with copy_()"));
  }
  trained.kept = now.detach();
  trained.value.data = now.data_ptr();
  runtime_->rebind_value(index, trained.value);
}

}  // namespace ddp::libtorch
