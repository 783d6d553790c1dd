// Trains a small convolutional network on Fashion-MNIST with libtorch: ddp-launch --cpus 2 -- train_cnn
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <iomanip>
#include <iostream>
#include <string>
#include <vector>

#include "data/image_set.hpp"
#include "ddp/ddp.hpp"
#include "ddp/libtorch.hpp"
#include "libtorch/command_line.hpp"

namespace {

struct Options {
  std::string data;
  bool synthetic = false;
  std::int64_t limit = 0;
  std::int64_t epochs = 0;
  std::int64_t batch = 0;
  std::uint64_t seed = 0;
  double learning_rate = 0;
};

auto describe(Options& options) {
  using namespace command_line;
  po::options_description all("Options", 100);
  auto add = all.add_options();
  add("data", po::value(&options.data)->value_name("DIR")->default_value(data::kFashionMnistFolder),
      "folder with {train,t10k}-{images-idx3,labels-idx1}-ubyte[.gz]");
  add("synthetic", po::bool_switch(&options.synthetic), "train on made-up images instead of files");
  add("limit", count(options.limit, 60000), "use the first N training images only");
  add("epochs", count(options.epochs, 3), "passes over the training images");
  add("batch", count(options.batch, 128), "images a step on all ranks together");
  add("lr", po::value(&options.learning_rate)->default_value(2e-3, "2e-3"),
      "of AdamW at the start; falls to 0");
  add("seed", po::value(&options.seed)->default_value(1), "of initial weights and shuffling");
  return all;
}

struct NetImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) {
    x = torch::max_pool2d(torch::relu(bn1(conv1(x))), 2);
    x = torch::max_pool2d(torch::relu(bn2(conv2(x))), 2);
    return fc2(torch::relu(fc1(torch::flatten(x, 1))));
  }

  torch::nn::Conv2d conv1 =
      register_module("conv1", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 16, 3).padding(1)));
  torch::nn::BatchNorm2d bn1 = register_module("bn1", torch::nn::BatchNorm2d(16));
  torch::nn::Conv2d conv2 =
      register_module("conv2", torch::nn::Conv2d(torch::nn::Conv2dOptions(16, 32, 3).padding(1)));
  torch::nn::BatchNorm2d bn2 = register_module("bn2", torch::nn::BatchNorm2d(32));
  torch::nn::Linear fc1 = register_module("fc1", torch::nn::Linear(32 * 7 * 7, 128));
  torch::nn::Linear fc2 =
      register_module("fc2", torch::nn::Linear(128, static_cast<std::int64_t>(data::kClasses)));
};
TORCH_MODULE(Net);

/// A data set in the rank's memory, bytes as they are.
struct Images {
  Images(data::ImageSet& set, torch::Device device) {
    auto const extent = [](std::size_t value) { return static_cast<std::int64_t>(value); };
    auto const of_set = [&](std::vector<std::uint8_t>& bytes, std::vector<std::int64_t> const& shape) {
      return torch::from_blob(bytes.data(), shape, torch::kUInt8).clone().to(device);
    };
    pixels = of_set(set.pixels, {extent(set.size()), 1, extent(set.rows), extent(set.columns)});
    labels = of_set(set.labels, {extent(set.size())}).to(torch::kInt64);
  }

  [[nodiscard]] torch::Tensor inputs(torch::Tensor const& which) const {
    return (pixels.index_select(0, which).to(torch::kFloat32) / 255.0 - 0.2860) / 0.3530;
  }

  torch::Tensor pixels;
  torch::Tensor labels;
};

double test_accuracy(ddp::World const& world, Net& net, Images const& images) {
  torch::NoGradGuard const no_grad;
  net->eval();
  // Each rank tests every size-th image.
  auto const mine = torch::arange(static_cast<std::int64_t>(world.rank().index()), images.labels.size(0),
                                  world.size(), images.labels.options());
  double correct = 0;
  for (auto const& which : mine.split(1000)) {
    correct +=
        (net(images.inputs(which)).argmax(1) == images.labels.index_select(0, which)).sum().item<double>();
  }
  net->train();
  return world.all_reduce_scalar(correct) / static_cast<double>(images.labels.size(0));
}

void train(Options const& options, ddp::World const& world) {
  auto const limit = static_cast<std::size_t>(options.limit);
  data::DataSet set =
      options.synthetic ? data::make_synthetic_data_set(limit, 2000) : data::read_data_set(options.data);
  set.train.truncate(limit);
  torch::Device const device = ddp::libtorch::device(world);
  torch::manual_seed(options.seed);
  Net net;
  net->to(device);
  ddp::libtorch::DistributedDataParallel const model(world, *net);  // every rank has rank 0's weights
  torch::optim::AdamW optimizer(net->parameters());
  auto& settings = static_cast<torch::optim::AdamWOptions&>(optimizer.param_groups()[0].options());

  Images const images(set.train, device);
  Images const test_images(set.test, device);
  ddp::DistributedSampler sampler(set.train.size(), world, {.seed = options.seed});
  auto const begin = std::chrono::steady_clock::now();
  for (std::int64_t epoch = 1; epoch <= options.epochs; ++epoch) {
    sampler.set_epoch(static_cast<std::uint64_t>(epoch));
    auto const batches = sampler.batches(static_cast<std::size_t>(options.batch / world.size()));
    auto const steps = static_cast<double>(batches.size());
    double loss_sum = 0;
    for (ddp::Batch const& batch : batches) {
      double const epochs_done = static_cast<double>(epoch - 1) + static_cast<double>(batch.step) / steps;
      settings.lr(options.learning_rate * (1 - epochs_done / static_cast<double>(options.epochs)));
      auto const which = torch::tensor(std::vector<std::int64_t>(batch.begin(), batch.end())).to(device);
      optimizer.zero_grad();
      auto const loss =
          torch::cross_entropy_loss(net(images.inputs(which)), images.labels.index_select(0, which));
      loss.backward();  // gradients travel meanwhile
      optimizer.step();
      loss_sum += loss.item<double>();
    }
    double const loss = world.all_reduce_scalar(loss_sum) / steps / world.size();
    double const accuracy = test_accuracy(world, net, test_images);
    std::chrono::duration<double> const seconds = std::chrono::steady_clock::now() - begin;
    if (world.rank() != 0) continue;
    std::cout << std::fixed << std::setprecision(4) << "epoch " << epoch << ": loss " << loss
              << ", test accuracy " << accuracy << ", " << std::setprecision(1) << seconds.count() << " s\n"
              << std::flush;
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  return command_line::run(argc, argv, "train_cnn", describe(options), [&] {
    ddp::World const world = ddp::World::init();
    command_line::expect(std::min(options.epochs, options.limit) > 0 && options.batch >= world.size(),
                         "--epochs and --limit from 1 on, and an image of --batch for each rank");
    train(options, world);
  });
}
