// Trains ResNet-50 on made-up images with libtorch, to see how fast that is: ddp-launch resnet50 --dtype amp
// --channels-last
#include <torch/torch.h>

#include <algorithm>
#include <iomanip>
#include <iostream>
#include <string>

#include "ddp/ddp.hpp"
#include "ddp/libtorch.hpp"
#include "libtorch/command_line.hpp"
#include "libtorch/models.hpp"
#include "libtorch/training.hpp"

namespace {

namespace po = boost::program_options;
using command_line::expect;

struct Options {
  std::int64_t batch = 0;
  std::int64_t size = 0;
  std::int64_t classes = 0;
  std::int64_t steps = 0;
  std::int64_t report = 0;
  std::uint64_t seed = 0;
  double learning_rate = 0;
  std::string dtype;
  bool channels_last = false;
};

po::options_description describe(Options& options) {
  using command_line::count;
  po::options_description all("Options", 100);
  auto add = all.add_options();
  add("batch", count(options.batch, 64), "images a step on each rank");
  add("size", count(options.size, 224), "pixels of an image's side");
  add("classes", count(options.classes, 1000), "that images may have");
  add("steps", count(options.steps, 100), "steps to train");
  add("report", count(options.report, 10), "print loss and speed after so many steps");
  add("dtype", po::value(&options.dtype)->value_name("fp32|amp|bf16")->default_value("fp32"),
      "amp: autocast");
  add("channels-last", po::bool_switch(&options.channels_last),
      "weights and images in the order of tensor cores");
  add("lr", po::value(&options.learning_rate)->default_value(0.05, "0.05"),
      "learning rate of SGD with momentum");
  add("seed", po::value(&options.seed)->default_value(1), "of initial weights and images");
  return all;
}

void check(Options const& options) {
  expect(options.dtype == "fp32" || options.dtype == "amp" || options.dtype == "bf16",
         "fp32, amp or bf16 for --dtype, found \"" + options.dtype + '"');
  expect(std::min({options.batch, options.classes, options.steps, options.report}) > 0, "numbers from 1 on");
  expect(options.size >= 32, "--size from 32 on");
}

/// torch::nn::Module::to() has no memory format. clone() gives kernels of one pixel its strides too, unlike
/// contiguous().
void to_channels_last(torch::nn::Module& net) {
  torch::NoGradGuard const no_grad;
  for (auto& parameter : net.parameters()) {
    if (parameter.dim() == 4) parameter.set_data(parameter.clone(torch::MemoryFormat::ChannelsLast));
  }
}

void train(Options const& options, ddp::World const& world) {
  torch::Device const device = ddp::libtorch::device(world);
  torch::manual_seed(options.seed);
  training::use_fast_kernels();
  auto const dtype = options.dtype == "bf16" ? torch::kBFloat16 : torch::kFloat32;
  models::ResNet50 net(options.classes);
  net->to(device, dtype);
  if (options.channels_last) to_channels_last(*net);
  ddp::libtorch::DistributedDataParallel const model(world, *net);  // every rank has rank 0's weights
  torch::optim::SGD optimizer(net->parameters(),
                              torch::optim::SGDOptions(options.learning_rate).momentum(0.9));

  // Each rank has images of its own; classes differ in brightness, so that there is something to learn.
  torch::manual_seed(options.seed + 1 + world.rank().index());
  auto const labels = torch::randint(options.classes, {options.batch}, torch::kInt64).to(device);
  auto images = torch::randn({options.batch, 3, options.size, options.size}).to(device);
  images += (labels.to(torch::kFloat32) / static_cast<double>(options.classes)).view({-1, 1, 1, 1});
  images = images.to(dtype).contiguous(options.channels_last ? torch::MemoryFormat::ChannelsLast
                                                             : torch::MemoryFormat::Contiguous);

  training::Report report(world, options.report, options.steps);
  for (std::int64_t step = 1; step <= options.steps; ++step) {
    optimizer.zero_grad();
    torch::Tensor const loss = [&] {
      training::Autocast const autocast(device, options.dtype == "amp");
      return torch::cross_entropy_loss(net(images), labels);
    }();
    loss.backward();  // gradients travel meanwhile
    optimizer.step();
    report.after(step, loss, [&](double seconds) {
      auto const seen = static_cast<double>(options.batch * world.size());
      std::cout << std::setprecision(1) << seen / seconds << " images/s";
    });
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  return command_line::run(argc, argv, "resnet50", describe(options), [&] {
    check(options);
    train(options, ddp::World::init());
  });
}
