// Trains a small net on all ranks for three steps and saves it, for Python: checkpoint_for_python FOLDER
//
// FOLDER/trained is the checkpoint that Python goes on with. FOLDER/answers has the samples and what the net
// makes of them in evaluation, FOLDER/next the net after one more step. FOLDER/both has two nets and their
// optimizers, FOLDER/drawn what rank 0's generator gives next.
#include <torch/torch.h>

#include <cstdint>
#include <filesystem>
#include <iostream>
#include <unordered_set>

#include "ddp/libtorch.hpp"

namespace {

namespace nn = torch::nn;

struct Net : nn::Module {
  // A bias before the normalisation has no gradient but rounding errors, which Adam makes large.
  nn::Conv2d conv = register_module("conv", nn::Conv2d(nn::Conv2dOptions(1, 4, 3).bias(false)));
  ddp::libtorch::SyncBatchNorm norm;
  nn::Linear once = register_module("once", nn::Linear(4, 4));
  nn::Linear again = register_module("again", once);
  explicit Net(ddp::World const& world)
      : norm(register_module("norm", ddp::libtorch::SyncBatchNorm(world, 4))) {}
  torch::Tensor forward(torch::Tensor const& x) {
    return again(torch::tanh(once(torch::relu(norm(conv(x))).mean({2, 3}))));
  }
};

struct Answers : nn::Module {
  Answers(torch::Tensor const& input, torch::Tensor const& output) {
    register_buffer("input", input);
    register_buffer("output", output);
  }
};

// Each once: Module::parameters() has tied ones twice.
std::vector<torch::Tensor> trained(nn::Module const& net) {
  std::vector<torch::Tensor> unique;
  std::unordered_set<void const*> seen;
  for (auto const& parameter : net.parameters()) {
    if (seen.insert(parameter.unsafeGetTensorImpl()).second) unique.push_back(parameter);
  }
  return unique;
}

void save(ddp::World const& world, std::filesystem::path const& folder, nn::Module& module,
          torch::optim::Optimizer* optimizer = nullptr) {
  ddp::libtorch::Checkpoint checkpoint(world, folder, module, optimizer);
  checkpoint.save({.step = 3});
  checkpoint.wait();
}

void run(std::filesystem::path const& folder) {
  ddp::World const world = ddp::World::init();
  torch::manual_seed(3);
  Net net(world);
  ddp::libtorch::DistributedDataParallel const model(world, net);
  torch::optim::AdamW optimizer(trained(net), torch::optim::AdamWOptions(0.01).weight_decay(0.1));
  auto const samples = torch::randn({4 * world.size(), 1, 6, 6}) * 2 + 1;
  auto const step = [&] {
    optimizer.zero_grad();
    net.forward(samples.chunk(world.size())[world.rank().index()]).square().mean().backward();
    optimizer.step();
  };
  for (int i = 0; i < 3; ++i) step();
  optimizer.param_groups()[0].options().set_lr(0.02);
  save(world, folder / "trained", net, &optimizer);
  net.eval();
  Answers answers(samples, net.forward(samples).detach());
  save(world, folder / "answers", answers);
  net.train();
  step();
  save(world, folder / "next", net);
  Net other(world);
  torch::optim::AdamW other_optimizer(trained(other));
  ddp::libtorch::Checkpoint both(world, folder / "both", {{"net", net}, {"other", other}},
                                 {{"net", optimizer}, {"other", other_optimizer}});
  torch::manual_seed(3 + static_cast<std::uint64_t>(world.rank().value()));
  both.save({.step = 4});
  auto const numbers = torch::rand({5});
  both.wait();
  Answers drawn(numbers, numbers.clone());
  save(world, folder / "drawn", drawn);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 64;
  try {
    run(argv[1]);
  } catch (std::exception const& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
