// A small training of a wrapped module whose ranks may die in its backward pass.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "ddp/ddp.hpp"
#include "ddp/libtorch.hpp"

namespace ddp::testing {

using Wrapped = libtorch::DistributedDataParallel;
using MakeOptimizer = std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)>;

/// Its backward pass calls a function between those of the layers.
struct Interrupts : torch::autograd::Function<Interrupts> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context, torch::Tensor const& x,
                               std::function<void()> const* call) {
    context->saved_data["call"] = reinterpret_cast<std::int64_t>(call);
    return x.clone();
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* context,
                                               torch::autograd::tensor_list const& gradients) {
    auto const* const call =
        reinterpret_cast<std::function<void()> const*>(context->saved_data["call"].toInt());
    if (*call) (*call)();
    return {gradients[0], torch::Tensor()};
  }
};

struct Net : torch::nn::Module {
  torch::nn::Linear first = register_module("first", torch::nn::Linear(6, 16));
  torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(16));
  torch::nn::Linear second = register_module("second", torch::nn::Linear(16, 3));
  std::function<void()> in_backward;
  torch::Tensor loss(torch::Tensor const& x) {
    auto const hidden = torch::relu(norm(first(x)));
    return second(Interrupts::apply(hidden, &in_backward)).square().mean();
  }
};

inline Wrapped::Options several_buckets() {
  Wrapped::Options options;
  options.runtime.bucket_bytes = options.runtime.first_bucket_bytes = Bytes{128};
  return options;
}

inline std::string bytes_of(torch::nn::Module const& module) {
  std::string bytes;
  for (auto const& each : module.parameters())
    bytes.append(static_cast<char const*>(each.const_data_ptr()), each.nbytes());
  return bytes;
}

/// A training whose steps depend only on `done`, the weights, and the ranks that there are.
struct Training {
  Training(World const& of, MakeOptimizer const& make, Wrapped::Options const& options = several_buckets())
      : world(of), net(equal_on_ranks()), optimizer(make(net->parameters())), model(of, *net, options) {}
  static std::shared_ptr<Net> equal_on_ranks() {
    std::lock_guard const lock(seed_mutex());
    torch::manual_seed(1);
    return std::make_shared<Net>();
  }
  static std::mutex& seed_mutex() {
    static std::mutex mutex;
    return mutex;
  }
  /// This rank's rows of 12.
  [[nodiscard]] torch::Tensor rows() const {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(100 + done));
    return torch::randn({12, 6}, generator).chunk(world.size()).at(world.rank().index());
  }
  void backward() {
    net->zero_grad(to_none);
    net->loss(rows()).backward();
  }
  void step() {
    backward();
    optimizer->step();
    ++done;
  }
  [[nodiscard]] std::string state() const {
    std::ostringstream out;
    torch::serialize::OutputArchive archive;
    optimizer->save(archive);
    archive.save_to(out);
    return std::move(out).str();
  }
  void take_state(std::string const& state) {
    std::istringstream in(state);
    torch::serialize::InputArchive archive;
    archive.load_from(in);
    optimizer->load(archive);
  }

  World world;
  std::shared_ptr<Net> net;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  Wrapped model;
  std::int64_t done = 0;
  bool to_none = true;
};

inline constexpr std::int64_t kLast = 9;

}  // namespace ddp::testing
