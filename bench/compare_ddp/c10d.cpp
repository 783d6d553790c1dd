// compare_ddp_c10d: PyTorch's own reducer, as its Python DistributedDataParallel uses it, with gradients as
// views of buckets and a static graph.
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#ifdef USE_C10D_NCCL
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#endif

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <stdexcept>
#include <string>
#include <unordered_map>

#include "compare_ddp/cpu_backend.hpp"
#include "compare_ddp/side.hpp"

namespace compare {
namespace {

using GroupPointer = c10::intrusive_ptr<c10d::ProcessGroup>;

// Of the environment, as ddp-launch sets it.
std::string variable(char const* name) {
  char const* const value = std::getenv(name);
  if (value == nullptr)
    throw std::runtime_error(std::string(name) + " is not set: start this with ddp-launch");
  return value;
}

class C10dModule : public Wrapped {
 public:
  C10dModule(GroupPointer group, torch::nn::Module& net, bool broadcast_buffers) : group_(std::move(group)) {
    if (broadcast_buffers) buffers_ = net.buffers();
    std::vector<torch::Tensor> const parameters = net.parameters();
    std::vector<bool> const none_is_sparse(parameters.size(), false);
    // With a static graph one bucket first, as in Python, and 1 MiB and 25 MiB after the first step.
    auto buckets = std::get<0>(c10d::compute_bucket_assignment_by_size(
        parameters, {std::numeric_limits<std::size_t>::max()}, none_is_sparse));
    std::reverse(buckets.begin(), buckets.end());
    reducer_ = std::make_shared<c10d::Reducer>(
        parameters, buckets, group_, none_is_sparse, c10d::kDefaultBucketBytesCap,
        /*find_unused_parameters=*/false, /*gradient_as_bucket_view=*/true,
        std::unordered_map<std::size_t, std::string>{}, c10d::kDefaultFirstBucketBytes,
        /*skip_all_reduce_unused_params=*/false, /*use_python_reducer=*/false, std::vector<std::int64_t>{});
    reducer_->set_static_graph();
  }

  void without_exchange(std::function<void()> const& /*backward*/) override {
    throw std::runtime_error(
        "compare_ddp_c10d has a static graph, and sends gradients in each backward pass");
  }
  void before_forward() override {
    reducer_->prepare_for_forward();
    reducer_->rebuild_buckets();
    if (!buffers_.empty()) {
      torch::NoGradGuard const no_grad;
      c10d::broadcast_coalesced(group_, buffers_, c10d::kDefaultBucketBytesCap * 10);
    }
  }

  void before_backward(torch::Tensor const& loss) override {
    reducer_->prepare_for_backward({});
    if (!first_) return;
    first_ = false;
    // The first step of a static graph sends everything at its end.
    loss.register_hook([reducer = reducer_](torch::Tensor const& gradient) {
      torch::autograd::Engine::get_default_engine().queue_callback(
          [reducer] { reducer->delay_all_reduce(); });
      return gradient;
    });
  }

 private:
  GroupPointer group_;
  std::vector<torch::Tensor> buffers_;
  std::shared_ptr<c10d::Reducer> reducer_;
  bool first_ = true;
};

class C10d : public Side {
 public:
  C10d() {
    c10d::TCPStoreOptions options;
    options.port = static_cast<std::uint16_t>(std::stoi(variable("MASTER_PORT")));
    options.isServer = rank_ == 0;
    options.numWorkers = static_cast<std::size_t>(size_);
    store_ = c10::make_intrusive<c10d::TCPStore>(variable("MASTER_ADDR"), options);
    group_ = c10::make_intrusive<c10d::ProcessGroup>(store_, rank_, size_);
    group_->setGroupName("compare");
#ifdef USE_C10D_NCCL
    if (torch::cuda::is_available()) {
      device_ = torch::Device(torch::kCUDA, static_cast<c10::DeviceIndex>(std::stoi(variable("LOCAL_RANK"))));
      c10::cuda::set_device(device_.index());
      // TORCH_NCCL_HIGH_PRIORITY decides about the stream.
      auto const backend = c10::make_intrusive<c10d::ProcessGroupNCCL>(
          store_, rank_, size_, c10d::ProcessGroupNCCL::Options::create());
      group_->setBackend(torch::kCUDA, c10d::ProcessGroup::BackendType::NCCL, backend);
      group_->setDefaultBackend(c10d::ProcessGroup::BackendType::NCCL);
    }
#endif
    if (device_.is_cpu()) {
      group_->setBackend(torch::kCPU, c10d::ProcessGroup::BackendType::CUSTOM,
                         c10::make_intrusive<CpuBackend>(ddp::World::init()));
      group_->setDefaultBackend(c10d::ProcessGroup::BackendType::CUSTOM);
    }
    word_ = torch::zeros({1}, torch::dtype(torch::kFloat32).device(device_));
  }

  ~C10d() override {
    if (device_.is_cuda()) group_->shutdown();
  }
  C10d(C10d const&) = delete;
  C10d& operator=(C10d const&) = delete;

  [[nodiscard]] char const* name() const override { return "c10d"; }
  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return size_; }
  [[nodiscard]] torch::Device device() const override { return device_; }
  void meet() override {
    std::vector<torch::Tensor> words{word_};
    group_->allreduce(words)->wait();
  }
  void barrier() override {
    meet();
    static_cast<void>(word_.item<float>());
  }
  [[nodiscard]] std::unique_ptr<Wrapped> wrap(torch::nn::Module& net, WrapOptions const& options) override {
    options.require_plain();  // and a static graph: not of gpt2-dropping
    return std::make_unique<C10dModule>(group_, net, options.broadcast_buffers);
  }

 private:
  int rank_ = std::stoi(variable("RANK"));
  int size_ = std::stoi(variable("WORLD_SIZE"));
  torch::Device device_ = torch::kCPU;
  c10::intrusive_ptr<c10d::TCPStore> store_;
  GroupPointer group_;
  torch::Tensor word_;
};

}  // namespace

std::unique_ptr<Side> make_side() { return std::make_unique<C10d>(); }

}  // namespace compare
