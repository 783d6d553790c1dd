// compare_ddp_ours: this project's adapter.
#include "compare_ddp/side.hpp"
#include "ddp/ddp.hpp"
#include "ddp/libtorch.hpp"

namespace compare {
namespace {

class OurModule : public Wrapped {
 public:
  OurModule(ddp::World const& world, torch::nn::Module& net, WrapOptions const& options)
      : model_(world, net, chosen(options)), guard_(model_.no_sync(!options.exchange)) {}

 private:
  static ddp::libtorch::DistributedDataParallel::Options chosen(WrapOptions const& options) {
    ddp::libtorch::DistributedDataParallel::Options result;
    if (!options.broadcast_buffers) result.runtime.buffers = ddp::BufferSync::never;
    return result;
  }

  ddp::libtorch::DistributedDataParallel model_;
  ddp::libtorch::NoSyncGuard guard_;
};

class Ours : public Side {
 public:
  [[nodiscard]] char const* name() const override { return "ours"; }
  [[nodiscard]] int rank() const override { return static_cast<int>(world_.rank().index()); }
  [[nodiscard]] int size() const override { return world_.size(); }
  [[nodiscard]] torch::Device device() const override { return ddp::libtorch::device(world_); }
  // The world's stream keeps order with CUDA's default stream, which is PyTorch's current one.
  void meet() override { world_.communicator().all_reduce(word_, ddp::ReduceOp::sum(), world_.stream()); }
  void barrier() override { world_.barrier(); }
  [[nodiscard]] std::unique_ptr<Wrapped> wrap(torch::nn::Module& net, WrapOptions const& options) override {
    return std::make_unique<OurModule>(world_, net, options);
  }

 private:
  ddp::World world_ = ddp::World::init();
  ddp::Tensor word_ = ddp::zeros({1}, ddp::DType::f32, world_.device());
};

}  // namespace

std::unique_ptr<Side> make_side() { return std::make_unique<Ours>(); }

}  // namespace compare
