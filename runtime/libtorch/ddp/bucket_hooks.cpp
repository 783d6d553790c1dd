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
  return every > 0 && (runtime_->steps() - steps_before_ + 1) % every == 0;
}

// `work` is trivially copyable. On a CPU its exceptions reach the program through the stream; on a GPU they
// do through the reducer.
template <class Work>
void DistributedDataParallel::Engine::run_update(Stream& stream, char const* from, std::size_t bucket,
                                                 Work const& work) {
  if (stream.device().kind != DeviceKind::cpu) return streams_->run_on(stream, work);
  host_stream(stream).enqueue([from, bucket, work] {
    try {
      work();
    } catch (std::exception const& error) {
      throw Error(ErrorCode::invalid_state,
                  text("what ", from, " was given threw at bucket ", bucket, ": ", error.what()));
    }
  });
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
  run_update(bucket.stream, "on_bucket_ready()", bucket.index, work);
}

// ---- a sharded optimizer (R25)

// Elements in the order of memory, complex ones as pairs.
std::vector<std::vector<DistributedDataParallel::Engine::Piece>> DistributedDataParallel::Engine::pieces() {
  auto const part = [](at::Tensor const& whole, BucketSlice const& piece) {
    at::Tensor const real = as_real(whole);
    return real.as_strided({static_cast<std::int64_t>(piece.count)}, {1},
                           real.storage_offset() + static_cast<std::int64_t>(piece.parameter_offset));
  };
  std::vector<std::vector<Piece>> all;
  for (Slice const& slice : runtime_->slices()) {
    auto& pieces = all.emplace_back();
    for (BucketSlice const& each : slice.pieces) {
      Trained const& of = trained_[each.parameter];
      pieces.push_back({each.parameter, of.parameter.tensor, part(of.kept, each), part(of.bound, each),
                        each.parameter_offset});
    }
  }
  return all;
}

// The averages are where backward() left them.
void DistributedDataParallel::Engine::require_gradients_in_place() const {
  for (Trained const& trained : trained_) {
    at::Tensor const& gradient = trained.parameter.tensor.grad();
    if (!trained.reduced || !gradient.defined() ||
        gradient.const_data_ptr() == trained.bound.const_data_ptr()) {
      continue;
    }
    throw Error(ErrorCode::invalid_state,
                text("the gradient of parameter \"", trained.parameter.name,
                     "\" is another tensor than backward() left: with Options::runtime.sharding change it in "
                     "place, each rank in its slices, or on the way (clip_norm, set_weight())"));
  }
}

void DistributedDataParallel::Engine::update_slices(std::function<void(std::size_t slice)> const& update) {
  if (!runtime_) {
    throw Error(
        ErrorCode::invalid_state,
        "ShardedOptimizer::step() behind the end of its DistributedDataParallel, which must outlive it");
  }
  or_abandon([this] { require_gradients_in_place(); });  // the others wait for this rank's values
  if (Stream* const stream = streams_->changed()) runtime_->compute_on(*stream);
  at::NoGradGuard const no_graph;
  runtime_->update_slices([&](Slice const& slice, Stream&) { update(slice.index); });
  // What autograd and a lone backward() are told by: the runtime writes values without PyTorch.
  for (Trained const& trained : trained_) trained.parameter.tensor.unsafeGetTensorImpl()->bump_version();
}

void DistributedDataParallel::Engine::on_slice_ready(std::function<void(std::size_t slice)> update) {
  if (!runtime_) return;  // the end of an optimizer that outlived its model
  SliceReady of_runtime;
  if (update) {
    of_runtime = [this](Slice const& slice, Stream& stream) {
      run_update(stream, "on_slice_ready()", slice.bucket, [this, index = slice.index] {
        at::NoGradGuard const no_graph;
        slice_update_(index);
      });
    };
  }
  runtime_->on_slice_ready(std::move(of_runtime));
  slice_update_ = std::move(update);
}

// Of a step's gradients a rank has averages in its slices only: what is added to the rest has no meaning.
void DistributedDataParallel::Engine::require_cleared(std::size_t index, bool was_cleared) const {
  if (was_cleared || !is_sharded()) return;
  throw Error(
      ErrorCode::invalid_state,
      text("the gradient of parameter \"", trained_[index].parameter.name,
           "\" was not cleared since the last step: with Options::runtime.sharding each rank has only "
           "its part of the averages, to which nothing can be added. Call zero_grad() after each step, "
           "and accumulate under no_sync()"));
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
