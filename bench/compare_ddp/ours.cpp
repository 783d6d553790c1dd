// compare_ddp_ours: this project's adapter.
#include "compare_ddp/side.hpp"
#include "ddp/config.hpp"
#include "ddp/ddp.hpp"
#include "ddp/libtorch.hpp"

namespace compare {
namespace {

class OurModule : public Wrapped {
 public:
  OurModule(ddp::World const& world, torch::nn::Module& net, WrapOptions const& options)
      : model_(world, net, chosen(options)) {
    if (options.update) model_.on_bucket_ready(options.update);
    checked_ = options.checked;
  }
  [[nodiscard]] torch::Tensor found_nonfinite() const override {
    return checked_ ? model_.found_nonfinite() : torch::Tensor();
  }

 private:
  static ddp::libtorch::DistributedDataParallel::Options chosen(WrapOptions const& from) {
    ddp::libtorch::DistributedDataParallel::Options options;
    options.runtime.buffers = from.broadcast_buffers ? ddp::BufferSync::broadcast : ddp::BufferSync::never;
    if (from.checked) options.runtime.nonfinite = ddp::ReducerOptions::Nonfinite::flag;
    options.runtime.statistics = from.statistics;
    if (from.bf16) options.runtime.reduce_dtype = ddp::DType::bf16;
    return options;
  }

  ddp::libtorch::DistributedDataParallel model_;
  bool checked_ = false;
};

// The stream that PyTorch computes on: CUDA's default one.
std::shared_ptr<ddp::Stream> computing([[maybe_unused]] ddp::Device device) {
#if DDP_HAS_CUDA
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
  void meet() override { world_.communicator().all_reduce(word_, ddp::ReduceOp::sum(), world_.stream()); }
  void barrier() override { world_.barrier(); }
  [[nodiscard]] std::unique_ptr<Wrapped> wrap(torch::nn::Module& net, WrapOptions const& options) override {
    return std::make_unique<OurModule>(world_, net, options);
  }

 private:
  ddp::World world_ = ddp::World::init({.stream = computing});
  ddp::Tensor word_ = ddp::zeros({1}, ddp::DType::f32, world_.device());
};

}  // namespace

std::unique_ptr<Side> make_side() { return std::make_unique<Ours>(); }

}  // namespace compare
