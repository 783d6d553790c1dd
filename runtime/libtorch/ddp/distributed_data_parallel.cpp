#include "ddp/libtorch/distributed_data_parallel.hpp"

#include <ATen/Functions.h>
#include <torch/nn/module.h>

#include <exception>
#include <string>
#include <utility>

#include "ddp/core/text.hpp"
#include "libtorch/batch_norm/statistics_exchange.hpp"
#include "libtorch/ddp/engine.hpp"

namespace ddp::libtorch {

// ---- what is wrapped

DistributedDataParallel::Engine::Engine(World world, torch::nn::Module& module, Options options)
    : world_(std::move(world)),
      module_(module.weak_from_this().lock(), &module),
      options_(std::move(options)),
      tensors_(tensors_of(module)),
      streams_(GpuStreams::of(world_.device())) {}

std::shared_ptr<DistributedDataParallel::Engine> DistributedDataParallel::Engine::make(
    World world, torch::nn::Module& module, Options options) {
  std::shared_ptr<Engine> engine(new Engine(std::move(world), module, std::move(options)));
  try {
    engine->build();
    return engine;
  } catch (...) {
    engine->close();
    throw;
  }
}

void DistributedDataParallel::Engine::build() {
  std::exception_ptr error;
  std::string complaint;
  try {
    prepare();
  } catch (std::exception const& refused) {
    error = std::current_exception();
    complaint = refused.what();
  }
  // If one rank refuses its module, all throw.
  auto const complaints = world_.control().all_gather(
      world_.next_name("libtorch"), complaint, world_.members(), Deadline::after(world_.options().timeout));
  if (error) std::rethrow_exception(error);
  for (std::size_t r = 0; r < complaints.size(); ++r) {
    if (complaints[r].empty()) continue;
    throw CommError(ErrorCode::mismatch,
                    text("rank ", r, " cannot wrap its module, so no rank does: ", complaints[r]));
  }
  auto runtime = options_.runtime;
  runtime.buffers = buffers_->views();
  runtime.compute_stream = streams_->current();
  runtime_.emplace(world_, parameters(), std::move(runtime));
  for (Trained const& trained : trained_) {
    GradientHook::of(trained.parameter.tensor)->set_uncommitted(uncommitted());
  }
  if (is_sharded()) streams_->free_unused_memory();  // where the values were before
  buffers_->start_again();
  tell_of_buffers();
  watch_passes();
  AutogradSupport(*runtime_).follow_world(following());
}

void DistributedDataParallel::Engine::tell_of_buffers() {
  if (options_.runtime.buffer_sync == BufferSync::never || buffers_->flags() == 0) return;
  AutogradSupport(*runtime_).tell_with_tail(buffers_->flags(), [this](std::span<std::uint8_t> flags) {
    buffers_->say(flags, recording_ != nullptr);
  });
}

void DistributedDataParallel::Engine::watch_passes() {
  pass_ = std::make_shared<BackwardPass>(BackwardPass::Events{
      .sends = [this] { send_rest(); },
      .ended = [this] { end_step(); },
      .abandoned =
          [this](std::string const& why) {
            abandon(text("the backward pass of rank ", world_.rank(), " ended with: ", why));
          }});
}

void DistributedDataParallel::Engine::prepare() {
  if (world_.device().kind == DeviceKind::cuda) require_one_nccl();
  require(options_.runtime.storage == GradientStorage::arena,
          "ddp::libtorch: gradients are parts of buckets: leave Options::runtime.storage at arena");
  require(
      options_.runtime.buffers.empty() && options_.runtime.compute_stream == nullptr,
      "ddp::libtorch: buffers are the module's and streams are PyTorch's: leave Options::runtime.buffers and "
      "compute_stream out");
  require(!tensors_.trained.empty(), [&] {
    return text("this module has no parameter that requires a gradient (and ", tensors_.frozen.size(),
                " that are frozen): there is nothing to average. A module without parameters needs no "
                "DistributedDataParallel");
  });
  require(
      options_.runtime.uneven == ddp::DistributedDataParallelOptions::Uneven::refuse ||
          StatisticsExchange::norms_of(*module_).empty(),
      "ddp::libtorch: Options::runtime.uneven with a SyncBatchNorm, whose forward pass needs every rank: a "
      "rank without data has none. Leave uneven at refuse, or use BatchNorm");
  for (ModuleTensor& parameter : tensors_.trained) {
    Trained& trained = trained_.emplace_back();
    trained.parameter = parameter;
    trained.kept = parameter.tensor.detach();
  }
  StatisticsExchange::tell_names(*module_);
  buffers_.emplace(tensors_, world_.device());
  changes_.emplace(tensors_.trained);
  static_cast<void>(buffers_->views());
  static_cast<void>(parameters());
  for (std::size_t p = 0; p < trained_.size(); ++p) {
    ModuleTensor const& parameter = trained_[p].parameter;
    GradientHook::install(
        parameter.tensor, parameter.name, this,
        [engine = shared_from_this(), p](at::Tensor const& now) { engine->accumulated(p, now); });
  }
  if (world_.device().kind == DeviceKind::cuda && !options_.runtime.allocate) {
    options_.runtime.allocate = [](Bytes bytes, Device on) -> Tensor {
      auto const memory = std::make_shared<at::Tensor>(at::empty(
          {static_cast<std::int64_t>(bytes.value)}, at::TensorOptions(at::kByte).device(place_of(on))));
      return {TensorView{memory->data_ptr(), Shape{bytes.value}, DType::u8, on}, memory};
    };
  }
}

std::vector<Parameter> DistributedDataParallel::Engine::parameters() {
  std::vector<Parameter> list;
  for (Trained& trained : trained_) {
    StridedView view =
        view_of(trained.kept, world_.device(), text("parameter \"", trained.parameter.name, "\""));
    trained.value = view.value;
    trained.gradient = view.value;
    list.push_back({.name = trained.parameter.name,
                    .value = view.value,
                    .bind_gradient =
                        [&trained](Tensor const& place) {
                          trained.bound = tensor_in(place, trained.kept);
                          trained.gradient.data = place.view().data;
                        },
                    .strides = std::move(view.strides),
                    .bind_value =
                        [&trained](Tensor const& place) {
                          trained.kept = tensor_in(place, trained.kept);
                          trained.parameter.tensor.set_data(trained.kept);
                          trained.value.data = trained.kept.data_ptr();
                        }});
  }
  return list;
}

void DistributedDataParallel::Engine::close() noexcept {
  if (pass_) pass_->close();
  for (Trained const& trained : trained_) GradientHook::remove(trained.parameter.tensor, this);
  runtime_.reset();
}

// ---- the public face

DistributedDataParallel::DistributedDataParallel(World world, torch::nn::Module& module, Options options)
    : engine_(Engine::make(std::move(world), module, std::move(options))) {}
DistributedDataParallel::~DistributedDataParallel() {
  if (engine_) engine_->close();
}
DistributedDataParallel::DistributedDataParallel(DistributedDataParallel&& other) noexcept = default;
DistributedDataParallel& DistributedDataParallel::operator=(DistributedDataParallel&& other) noexcept {
  if (engine_ && engine_ != other.engine_) engine_->close();
  engine_ = std::move(other.engine_);
  return *this;
}

NoSyncGuard DistributedDataParallel::no_sync(bool when) {
  return when ? NoSyncGuard(engine_->no_sync_depth()) : NoSyncGuard();
}
void DistributedDataParallel::set_weight(double weight) { engine_->runtime().set_weight(weight); }
void DistributedDataParallel::begin_forward() { engine_->begin_forward(); }
at::Tensor DistributedDataParallel::gradient_norm() const { return engine_->gradient_norm(); }
at::Tensor DistributedDataParallel::found_nonfinite() const { return engine_->found_nonfinite(); }
at::Tensor DistributedDataParallel::uncommitted() const { return engine_->uncommitted(); }
void DistributedDataParallel::join(std::function<void()> const& update) { engine_->join(update); }
void DistributedDataParallel::set_comm_hook(CommHook hook) { engine_->set_comm_hook(std::move(hook)); }
void DistributedDataParallel::on_bucket_ready(BucketReady update) {
  engine_->on_bucket_ready(std::move(update));
}
void DistributedDataParallel::synchronize() { engine_->synchronize(); }
void DistributedDataParallel::sync_buffers() { engine_->sync_buffers(); }
void DistributedDataParallel::mark_buffers_dirty() { engine_->mark_buffers_dirty(); }
ddp::DistributedDataParallel& DistributedDataParallel::runtime() noexcept { return engine_->runtime(); }

NoSyncGuard::NoSyncGuard(std::shared_ptr<int> depth) noexcept : depth_(std::move(depth)) { ++*depth_; }
NoSyncGuard& NoSyncGuard::operator=(NoSyncGuard&& other) noexcept {
  NoSyncGuard taken(std::move(other));
  std::swap(depth_, taken.depth_);  // `taken` ends the guard of this one
  return *this;
}
NoSyncGuard::~NoSyncGuard() {
  if (depth_) --*depth_;
}

}  // namespace ddp::libtorch
