// What docs/libtorch.md takes from PyTorch and from a program, as declarations only: its snippets are
// compiled where PyTorch is not, too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <ddp/ddp.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

// The headers of the adapter declare these, and no more.
namespace c10 {
struct Device {};
}  // namespace c10
namespace at {
enum Type { kHalf };
class Tensor {
 public:
  Tensor to(Type type) const;
  Tensor to(c10::Device device) const;
  std::int64_t size(std::int64_t axis) const;
  void backward() const;
  void copy_(Tensor const& from) const;
};
}  // namespace at
namespace torch {
using at::Tensor;
void manual_seed(std::uint64_t seed);
namespace nn {
class Module {
 public:
  void to(c10::Device device);
  void zero_grad();
  Tensor forward(Tensor const& input);
  std::vector<Tensor> parameters() const;
};
struct Linear : Module {
  Linear(int in, int out);
};
struct ReLU : Module {};
struct Sequential : std::shared_ptr<Module> {
  template <class... Layers>
  explicit Sequential(Layers const&... layers);
};
}  // namespace nn
namespace optim {
class Optimizer {
 public:
  void zero_grad();
  void step();
};
struct AdamWOptions {
  explicit AdamWOptions(double learning_rate);
};
struct AdamW : Optimizer {
  AdamW(std::vector<Tensor> const& parameters, double rate);
};
}  // namespace optim
void save(nn::Sequential const& module, std::string const& file);
}  // namespace torch

#include <ddp/libtorch/checkpoint.hpp>
#include <ddp/libtorch/collectives.hpp>
#include <ddp/libtorch/distributed_data_parallel.hpp>
#include <ddp/libtorch/step_graph.hpp>

// The other headers of ddp::libtorch need PyTorch's: for base classes, and for tensors.
namespace ddp::libtorch {
class AdamW : public torch::optim::Optimizer {
 public:
  AdamW(int groups, torch::optim::AdamWOptions options);
};
class ShardedOptimizer {
 public:
  ShardedOptimizer(DistributedDataParallel& model,
                   std::function<std::unique_ptr<torch::optim::Optimizer>(int groups)> const& make);
  void zero_grad();
  void step();
};
class GradientBucket {
 public:
  at::Tensor const& gradients() const;
  void all_reduce(at::Tensor const& tensor) const;
};
struct SyncBatchNorm {
  SyncBatchNorm(World const& world, int channels);
};
std::size_t convert_sync_batchnorm(World const& world, torch::nn::Module& module);
class DataParallel {
 public:
  explicit DataParallel(torch::nn::Sequential const& module);
  torch::Tensor forward(torch::Tensor const& input);
};
class DistributedSampler {
 public:
  DistributedSampler(std::size_t size, World const& world, DistributedSamplerOptions options);
  void set_epoch(std::uint64_t epoch);
};
}  // namespace ddp::libtorch

struct Example {
  torch::Tensor data;
  torch::Tensor target;
};
namespace torch::data {
template <class Set, class Sampler>
std::unique_ptr<std::vector<Example>> make_data_loader(Set const& set, Sampler const& sampler,
                                                       std::size_t batch);
}  // namespace torch::data

namespace libtorch {
struct Images {
  std::optional<std::size_t> size() const;
};
torch::Tensor loss_of(torch::Tensor const& output, torch::Tensor const& target);

extern ddp::World world;
extern torch::nn::Sequential net;
extern torch::optim::AdamW optimizer;
extern torch::nn::Sequential generator;
extern torch::nn::Sequential discriminator;
extern torch::optim::AdamW generator_steps;
extern torch::optim::AdamW discriminator_steps;
extern std::unique_ptr<std::vector<Example>> loader;
extern Example batch;
extern torch::Tensor input;
extern torch::Tensor target;
extern Images images;
extern ddp::libtorch::DistributedSampler sampler;
extern std::uint64_t steps_done;
extern std::uint64_t epoch;
}  // namespace libtorch
