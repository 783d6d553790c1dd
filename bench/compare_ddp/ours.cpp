// compare_ddp_ours: this project's adapter.
#include <map>
#include <optional>
#include <utility>

#include "compare_ddp/side.hpp"
#include "ddp/ddp.hpp"
#include "ddp/libtorch.hpp"
#ifdef COMPARE_GPUS
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#endif

namespace compare {
namespace {

class OurModule : public Wrapped {
 public:
  OurModule(ddp::World const& world, torch::nn::Module& net, WrapOptions const& options)
      : model_(world, net, chosen(options)) {
    if (options.update) model_.on_bucket_ready(options.update);
    if (options.shard)
      sharded_.emplace(model_, options.make, ddp::libtorch::ShardedOptimizer::Groups{}, *options.shard);
    checked_ = options.checked;
    clips_ = options.clip_norm > 0;
  }
  void without_exchange(std::function<void()> const& backward) override {
    auto const guard = model_.no_sync();
    backward();
  }
  [[nodiscard]] torch::Tensor clipped_norm() const override {
    return clips_ ? model_.gradient_norm() : torch::Tensor();
  }
  [[nodiscard]] torch::Tensor found_nonfinite() const override {
    return checked_ ? model_.found_nonfinite() : torch::Tensor();
  }
  [[nodiscard]] ddp::libtorch::ShardedOptimizer* sharded() override {
    return sharded_ ? &*sharded_ : nullptr;
  }
  [[nodiscard]] ddp::libtorch::DistributedDataParallel& model() { return model_; }

 private:
  static ddp::libtorch::DistributedDataParallel::Options chosen(WrapOptions const& from) {
    ddp::libtorch::DistributedDataParallel::Options options;
    options.runtime.buffer_sync =
        from.broadcast_buffers ? ddp::BufferSync::broadcast : ddp::BufferSync::never;
    options.runtime.deterministic = from.deterministic;
    options.runtime.clip_norm = from.clip_norm;
    if (from.checked) options.runtime.nonfinite = ddp::DistributedDataParallelOptions::Nonfinite::flag;
    options.runtime.statistics = from.statistics;
    if (from.shard) options.runtime.sharding = ddp::Sharding::optimizer;
    if (from.bucket_mib > 0)
      options.runtime.bucket_bytes = ddp::Bytes{static_cast<std::size_t>(from.bucket_mib) << 20};
    if (from.bf16) options.runtime.reduce_dtype = ddp::DType::bf16;
    return options;
  }

  ddp::libtorch::DistributedDataParallel model_;
  std::optional<ddp::libtorch::ShardedOptimizer> sharded_;
  bool checked_ = false;
  bool clips_ = false;
};

constexpr int kWarmUp = 3;  // steps before one is recorded

class OurRecorded : public Recorded {
 public:
  OurRecorded(OurModule& module, std::function<void()> step)
      : graph_(module.model(), std::move(step), {.warm_up = kWarmUp}) {}
  void run() override { graph_.run(); }
  [[nodiscard]] std::string why_eager() const override { return graph_.why_eager(); }

 private:
  ddp::libtorch::StepGraph graph_;
};

// Of a step without DDP: PyTorch's graph alone.
class PlainRecorded : public Recorded {
 public:
  explicit PlainRecorded(std::function<void()> step) : step_(std::move(step)) {}
#ifdef COMPARE_GPUS
  void run() override {
    if (!torch::cuda::is_available()) return step_();
    auto const current = c10::cuda::getCurrentCUDAStream();
    if (!stream_) stream_ = c10::cuda::getStreamFromPool();
    c10::cuda::CUDAStreamGuard const guard(*stream_);
    before_.record(current);
    before_.block(*stream_);
    if (steps_++ < kWarmUp) {
      step_();
    } else {
      if (!graph_) {
        c10::cuda::CUDACachingAllocator::emptyCache();
        graph_ = std::make_unique<at::cuda::CUDAGraph>();
        graph_->capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
        step_();
        graph_->capture_end();
      }
      graph_->replay();
    }
    after_.record(*stream_);
    after_.block(current);
  }

 private:
  std::optional<c10::cuda::CUDAStream> stream_;
  at::cuda::CUDAEvent before_, after_;
  std::unique_ptr<at::cuda::CUDAGraph> graph_;
  int steps_ = 0;

 public:
#else
  void run() override { step_(); }
#endif
  [[nodiscard]] std::string why_eager() const override {
    return torch::cuda::is_available() ? "" : "a CPU has no CUDA graphs";
  }

 private:
  std::function<void()> step_;
};

// The stream that PyTorch computes on: CUDA's default one.
std::shared_ptr<ddp::Stream> computing([[maybe_unused]] ddp::Device device) {
#ifdef COMPARE_GPUS
  if (device.kind == ddp::DeviceKind::cuda) return std::make_shared<ddp::CudaStream>(device, nullptr);
#endif
  return nullptr;
}

class Ours : public Side {
 public:
  [[nodiscard]] char const* name() const override { return "ours"; }
  [[nodiscard]] int rank() const override { return static_cast<int>(world_.rank().index()); }
  [[nodiscard]] int size() const override { return world_.size(); }
  [[nodiscard]] torch::Device device() const override { return ddp::libtorch::device(world_); }
  void meet() override { world_.communicator().all_reduce(word_, ddp::ReduceOp::sum(), current_stream()); }
  void barrier() override { world_.barrier(); }
  [[nodiscard]] std::unique_ptr<Wrapped> wrap(torch::nn::Module& net, WrapOptions const& options) override {
    return std::make_unique<OurModule>(world_, net, options);
  }
  [[nodiscard]] std::unique_ptr<Recorded> record(Wrapped* wrapped, std::function<void()> step) override {
    if (wrapped == nullptr) return std::make_unique<PlainRecorded>(std::move(step));
    return std::make_unique<OurRecorded>(dynamic_cast<OurModule&>(*wrapped), std::move(step));
  }

 private:
  // PyTorch's: a graph is recorded on another than World::stream().
  ddp::Stream& current_stream() {
#ifdef COMPARE_GPUS
    if (device().is_cuda()) {
      auto* const handle = c10::cuda::getCurrentCUDAStream().stream();
      auto& stream = streams_[handle];
      if (!stream) stream = std::make_unique<ddp::CudaStream>(world_.device(), handle);
      return *stream;
    }
#endif
    return world_.stream();
  }

  ddp::World world_ = ddp::World::init({.stream = computing});
  std::map<void*, std::unique_ptr<ddp::Stream>> streams_;
  ddp::Tensor word_ = ddp::zeros({1}, ddp::DType::f32, world_.device());
};

}  // namespace

std::unique_ptr<Side> make_side() { return std::make_unique<Ours>(); }

}  // namespace compare
