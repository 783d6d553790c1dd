#include "ddp/libtorch/bucket_hooks.hpp"

#include <ATen/core/grad_mode.h>

#include <cstdint>
#include <exception>
#include <utility>

#include "ddp/core/text.hpp"
#include "libtorch/ddp/engine.hpp"

namespace ddp::libtorch {

void GradientBucket::all_reduce(at::Tensor const& tensor) const {
  Device const device = bucket_.stream.device();
  StridedView const view = view_of(tensor, device, "what a comm hook reduces");
  require(view.strides.empty(), "a comm hook: expected a contiguous tensor to reduce; call contiguous()");
  TensorView const all{view.value.data, Shape{view.value.count()}, view.value.dtype, device};
  bucket_.communicator.all_reduce(all, bucket_.op, bucket_.stream);
  if (device.kind == DeviceKind::cpu) bucket_.stream.synchronize();
}

// In memory that lives as long as this object.
at::Tensor DistributedDataParallel::Engine::scalar(TensorView const& word) const {
  return tensor_of(word, device(world_)).squeeze(0);
}

void DistributedDataParallel::Engine::set_comm_hook(CommHook hook) {
  ddp::CommHook runtime_hook{hook.name, {}};
  if (hook.reduce) {
    runtime_hook.reduce = [this, hook](ddp::GradientBucket const& bucket) { run_hook(hook, bucket); };
  }
  runtime_->set_comm_hook(std::move(runtime_hook));
}

// On a CPU operations of PyTorch run at once, so enqueued work must be done before.
void DistributedDataParallel::Engine::run_hook(CommHook const& hook, ddp::GradientBucket const& bucket) {
  TensorView const& gradients = bucket.gradients[0];
  if (gradients.device.kind == DeviceKind::cpu) bucket.stream.synchronize();
  streams_->run_on(bucket.stream, [&] {
    at::NoGradGuard const no_graph;
    hook.reduce({bucket, tensor_of(gradients, device(world_))});
  });
}

void DistributedDataParallel::Engine::on_bucket_ready(BucketReady update) {
  require(!update || !options_.runtime.allow_repeated_ready,
          "on_bucket_ready(): with Options::runtime.allow_repeated_ready a gradient is in its bucket only at "
          "the end of a step: call optimizer.step() after backward()");
  ddp::BucketReady of_runtime;
  if (update) of_runtime = [this](ReducedBucket const& bucket) { this->update(bucket); };
  runtime_->on_bucket_ready(std::move(of_runtime));
  update_ = std::move(update);
}

// Parameters that this rank has not used are updated after the comparison of weights, so then all are.
bool DistributedDataParallel::Engine::compares_weights() {
  std::uint64_t const every = options_.runtime.verify_every;
  return every > 0 && (runtime_->steps() + 1) % every == 0;
}

void DistributedDataParallel::Engine::update(ReducedBucket const& bucket) {
  if (compares_weights()) return;
  if (bucket.index == 0) updates_.resize(bucket.count);
  std::vector<at::Tensor>& parameters = updates_[bucket.index];
  parameters.clear();
  BucketPlan const& plan = runtime_->plan();
  for (BucketSlice const& piece : bucket.slices) {
    Trained& trained = trained_[piece.parameter];
    bool const is_last = plan.buckets_of(piece.parameter).back() == bucket.index;
    if (!is_last || trained.arrived != step_) continue;
    trained.updated = step_;
    parameters.push_back(trained.parameter.tensor);
  }
  if (parameters.empty()) return;
  auto const work = [this, &parameters] {
    at::NoGradGuard const no_graph;
    update_(parameters);
  };
  if (bucket.stream.device().kind == DeviceKind::cpu) {
    // Its exceptions reach the program through the stream; on a GPU they do through the reducer.
    host_stream(bucket.stream).enqueue([work, index = bucket.index] {
      try {
        work();
      } catch (std::exception const& error) {
        throw Error(ErrorCode::invalid_state,
                    text("what on_bucket_ready() was given threw at bucket ", index, ": ", error.what()));
      }
    });
  } else {
    streams_->run_on(bucket.stream, work);
  }
}

// Updates parameters that only other ranks used, that have no elements, or, without skip_unused, that no rank
// used. In a step that compares weights, updates all.
void DistributedDataParallel::Engine::update_rest() {
  std::vector<at::Tensor> rest;
  for (std::size_t p = 0; p < trained_.size(); ++p) {
    if (trained_[p].updated != step_ && has_gradient(p)) rest.push_back(trained_[p].parameter.tensor);
  }
  if (rest.empty()) return;
  at::NoGradGuard const no_graph;
  update_(rest);
}

}  // namespace ddp::libtorch
