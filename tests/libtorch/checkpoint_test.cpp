// What libtorch::Checkpoint keeps: modules, optimizers, generators.
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "ddp/config.hpp"
#include "ddp/core/text.hpp"
#include "libtorch/state_models.hpp"

#if DDP_HAS_OPENSSL
namespace ddp::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

std::filesystem::path fresh_folder(char const* name) {
  auto const folder =
      std::filesystem::temp_directory_path() / text("ddp_libtorch_", name, '_', gathered(text(getpid()))[0]);
  if (world().rank() == 0) std::filesystem::remove_all(folder);
  world().barrier();
  return folder;
}

std::string header_of(std::filesystem::path const& folder, char const* file) {
  std::ifstream in(folder / "latest" / file, std::ios::binary);
  std::string bytes(4096, '\0');
  in.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  return bytes;
}

template <class Optimizer, class Options>
void resumes(char const* name, Options const& options) {
  auto const folder = fresh_folder(name);
  auto const make = [&] {
    auto net = on_device(std::make_shared<Normalised>());
    return net;
  };
  auto const train = [](Normalised& net, torch::optim::Optimizer& optimizer, std::uint64_t step) {
    optimizer.zero_grad();
    loss_of(net.forward(rows_of_this_rank(step)) - 1).backward();
    optimizer.step();
  };
  std::string expected;
  {
    auto net = make();
    Wrapped wrapped(world(), *net, small_buckets());
    Optimizer optimizer(net->parameters(), options);
    libtorch::Checkpoint checkpoint(world(), folder, *net, &optimizer);
    EXPECT_FALSE(checkpoint.restore());
    for (std::uint64_t step = 0; step < 3; ++step) train(*net, optimizer, step);
    optimizer.param_groups()[0].options().set_lr(0.03);
    checkpoint.save({.step = 3});
    for (std::uint64_t step = 3; step < 6; ++step) train(*net, optimizer, step);
    expected = bytes_of_all(net->parameters()) + bytes_of_all(net->buffers());
    checkpoint.wait();
  }
  torch::manual_seed(99);
  auto net = make();
  Wrapped wrapped(world(), *net, small_buckets());
  Optimizer optimizer(net->parameters(), options);
  libtorch::Checkpoint checkpoint(world(), folder, *net, &optimizer);
  auto const restored = checkpoint.restore();
  ASSERT_TRUE(restored);
  EXPECT_EQ(restored->position.step, 3U);
  EXPECT_EQ(optimizer.param_groups()[0].options().get_lr(), 0.03);
  for (std::uint64_t step = 3; step < 6; ++step) train(*net, optimizer, step);
  EXPECT_TRUE(bytes_of_all(net->parameters()) + bytes_of_all(net->buffers()) == expected);
  world().barrier();
  if (world().rank() == 0) std::filesystem::remove_all(folder);
}

TEST(LibtorchCheckpoint, R22ACheckpointResumesBitForBit) {
  resumes<torch::optim::SGD>("sgd", torch::optim::SGDOptions(0.1).momentum(0.9));
  resumes<torch::optim::Adam>("adam", torch::optim::AdamOptions(0.01).amsgrad(true));
  resumes<torch::optim::AdamW>("adamw", torch::optim::AdamWOptions(0.01));
  resumes<libtorch::AdamW>("fused_adamw", torch::optim::AdamWOptions(0.01).amsgrad(true));
  resumes<libtorch::SGD>("fused_sgd", torch::optim::SGDOptions(0.1).momentum(0.9));
  resumes<torch::optim::RMSprop>("rmsprop", torch::optim::RMSpropOptions(0.01).momentum(0.5).centered(true));
  resumes<torch::optim::Adagrad>("adagrad", torch::optim::AdagradOptions(0.01));
}

struct Oddities : torch::nn::Module {
  torch::Tensor transposed = register_parameter("transposed", torch::randn({4, 6}).t());
  torch::Tensor turned = register_parameter("turned", torch::randn({3}, torch::kComplexFloat));
  torch::nn::Linear once = register_module("once", torch::nn::Linear(4, 4));
  torch::nn::Linear again = register_module("again", once);
};

TEST(LibtorchCheckpoint, R22CheckpointsHavePyTorchsNames) {
  auto const folder = fresh_folder("names");
  auto net = on_device(std::make_shared<Oddities>());
  Wrapped wrapped(world(), *net);
  torch::optim::AdamW optimizer(net->parameters(), 0.01);
  libtorch::Checkpoint checkpoint(world(), folder, *net, &optimizer);
  auto const before = bytes_of_all(net->parameters());
  checkpoint.save({.step = 1});
  checkpoint.wait();
  auto const header = [&](char const* file) { return header_of(folder, file); };
  EXPECT_THAT(header("model.safetensors"), HasSubstr("\"once.weight\""));
  EXPECT_THAT(header("model.safetensors"), HasSubstr("\"transposed\""));
  EXPECT_THAT(header("model.safetensors"), Not(HasSubstr("\"again.weight\"")));
  EXPECT_THAT(header("optimizer.safetensors"), HasSubstr("\"state.once.weight.exp_avg_sq\""));
  EXPECT_THAT(header("optimizer.safetensors"), HasSubstr("\"state.turned.step\""));
  EXPECT_THAT(header("optimizer.safetensors"), HasSubstr("\"param_groups.0.lr\""));
  {
    torch::NoGradGuard const no_graph;
    for (auto const& parameter : net->parameters()) parameter.zero_();
    net->once->weight.set_data(torch::zeros_like(net->once->weight));  // moved meanwhile
  }
  ASSERT_TRUE(checkpoint.restore());
  EXPECT_TRUE(bytes_of_all(net->parameters()) == before);
  world().barrier();
  if (world().rank() == 0) std::filesystem::remove_all(folder);
}

torch::Tensor draws() {
  return torch::cat({torch::rand({5}), torch::rand({5}, libtorch::device(world())).cpu()});
}

void seed_this_rank() { torch::manual_seed(7 + static_cast<std::uint64_t>(world().rank().value())); }

// A GAN: two modules, two optimizers, each with its name.
TEST(LibtorchCheckpoint, R22ACheckpointOfSeveralModulesAndOptimizersResumesBitForBit) {
  auto const folder = fresh_folder("several");
  struct Gan {
    torch::Device place = libtorch::device(world());
    std::shared_ptr<Normalised> generator = on_device(std::make_shared<Normalised>());
    std::shared_ptr<TwoLayers> discriminator = on_device(std::make_shared<TwoLayers>());
    Wrapped wrapped_generator{world(), *generator, small_buckets()};
    Wrapped wrapped_discriminator{world(), *discriminator, small_buckets()};
    torch::optim::Adam one{generator->parameters(), torch::optim::AdamOptions(0.01)};
    torch::optim::SGD other{discriminator->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9)};
    void train() {
      auto const input = torch::dropout(torch::rand({4, 6}, place), 0.5, true);
      one.zero_grad();
      loss_of(generator->forward(input) - 1).backward();
      one.step();
      other.zero_grad();
      loss_of(discriminator->forward(input) - 1).backward();
      other.step();
    }
    [[nodiscard]] std::string bytes() const {
      return bytes_of_all(generator->parameters()) + bytes_of_all(generator->buffers()) +
             bytes_of_all(discriminator->parameters());
    }
    [[nodiscard]] libtorch::Checkpoint checkpoint(std::filesystem::path const& folder) {
      return {world(),
              folder,
              {{"generator", *generator}, {"discriminator", *discriminator}},
              {{"generator", one}, {"discriminator", other}}};
    }
  };
  std::string expected;
  {
    Gan gan;
    auto checkpoint = gan.checkpoint(folder);
    seed_this_rank();
    for (int step = 0; step < 2; ++step) gan.train();
    checkpoint.save({.step = 2});
    for (int step = 0; step < 2; ++step) gan.train();
    expected = gan.bytes();
    checkpoint.wait();
    EXPECT_THAT(header_of(folder, "model.safetensors"),
                AllOf(HasSubstr("\"generator.linear.weight\""), HasSubstr("\"discriminator.")));
    EXPECT_THAT(header_of(folder, "optimizer.safetensors"),
                AllOf(HasSubstr("\"generator.state.generator.linear.weight.exp_avg\""),
                      HasSubstr("\"generator.param_groups.0.lr\""),
                      HasSubstr("\"discriminator.param_groups.0.lr\"")));
  }
  torch::manual_seed(99);
  Gan gan;
  auto checkpoint = gan.checkpoint(folder);
  auto const restored = checkpoint.restore();
  ASSERT_TRUE(restored);
  EXPECT_TRUE(restored->rank_tensors);
  for (int step = 0; step < 2; ++step) gan.train();
  EXPECT_TRUE(gan.bytes() == expected);
  world().barrier();
  if (world().rank() == 0) std::filesystem::remove_all(folder);
}

TEST(LibtorchCheckpoint, R22EachRanksGeneratorsGoOnWhereTheyWere) {
  auto const folder = fresh_folder("generators");
  auto net = on_device(std::make_shared<TwoLayers>());
  torch::Tensor expected;
  {
    libtorch::Checkpoint checkpoint(world(), folder, *net);
    seed_this_rank();
    static_cast<void>(draws());
    checkpoint.save({.step = 1});
    expected = draws();
    checkpoint.wait();
  }
  torch::manual_seed(99);
  libtorch::Checkpoint checkpoint(world(), folder, *net);
  auto const restored = checkpoint.restore();
  ASSERT_TRUE(restored);
  EXPECT_TRUE(restored->rank_tensors);
  EXPECT_TRUE(torch::equal(draws(), expected));
  world().barrier();
  if (world().rank() == 0) std::filesystem::remove_all(folder);
}

// As where more ranks go on than wrote it.
TEST(LibtorchCheckpoint, R22ARankThatDidNotWriteKeepsItsGenerators) {
  if (!libtorch::device(world()).is_cpu()) GTEST_SKIP() << "the lone rank that writes is one of a CPU";
  auto const folder = fresh_folder("fewer");
  auto net = std::make_shared<TwoLayers>();
  if (world().rank() == 0) {
    libtorch::Checkpoint alone(World::in_process(1)[0], folder, *net);
    alone.save({.step = 1});
    alone.wait();
  }
  auto const next = draws();
  torch::manual_seed(99);
  auto const fresh = draws();
  torch::manual_seed(99);
  world().barrier();
  libtorch::Checkpoint checkpoint(world(), folder, *net);
  auto const restored = checkpoint.restore();
  ASSERT_TRUE(restored);
  EXPECT_EQ(restored->rank_tensors, world().rank() == 0);
  EXPECT_TRUE(torch::equal(draws(), world().rank() == 0 ? next : fresh));
  world().barrier();
  if (world().rank() == 0) std::filesystem::remove_all(folder);
}

TEST(LibtorchCheckpoint, R22TwoPartsOfACheckpointCannotShareAName) {
  auto net = on_device(std::make_shared<TwoLayers>());
  auto other = on_device(std::make_shared<TwoLayers>());
  auto const messages = messages_of([&] {
    libtorch::Checkpoint const checkpoint(world(), fresh_folder("twice"), {{"net", *net}, {"net", *other}},
                                          {});
  });
  EXPECT_THAT(messages, Each(HasSubstr("two modules are called \"net\"")));
}

TEST(LibtorchCheckpoint, R22AnOptimizerWithoutNamesIsRefused) {
  auto net = on_device(std::make_shared<TwoLayers>());
  torch::optim::LBFGS optimizer(net->parameters());
  auto const messages = messages_of(
      [&] { libtorch::Checkpoint const checkpoint(world(), fresh_folder("lbfgs"), *net, &optimizer); });
  EXPECT_THAT(messages, Each(HasSubstr("SGD, Adam, AdamW, RMSprop or Adagrad")));
}

}  // namespace
}  // namespace ddp::testing
#endif
