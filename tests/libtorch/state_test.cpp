// What a training keeps between steps: buffers, checkpoints, its place in the data.
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "ddp/config.hpp"
#include "ddp/core/text.hpp"
#include "libtorch/models.hpp"

namespace ddp::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

struct Normalised : torch::nn::Module {
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(6, 4));
  torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(4));
  torch::Tensor mask = register_buffer("mask", torch::ones({4}, torch::kBool));
  torch::Tensor forward(torch::Tensor const& x) { return norm(linear(x)) * mask; }
};

torch::Tensor rows_of_this_rank(std::uint64_t step) {
  return random_rows(4, 6, 100 * step + static_cast<std::uint64_t>(world().rank().value()));
}

// What a BatchNorm of each rank has after forward passes of its own.
TEST(LibtorchState, R10R22BuffersAreThoseOfRank0AfterEachStep) {
  auto net = on_device(std::make_shared<Normalised>());
  Wrapped wrapped(world(), *net, small_buckets());
  auto alone = copy_of(*net);  // as rank 0 sees it
  for (std::uint64_t step = 0; step < 3; ++step) {
    net->zero_grad();
    loss_of(net->forward(rows_of_this_rank(step))).backward();
    expect_equal_on_ranks(net->buffers());
    if (world().rank() == 0) {
      alone->forward(rows_of_this_rank(step));
      expect_near(net->norm->running_mean, alone->norm->running_mean);
      expect_near(net->norm->running_var, alone->norm->running_var);
    }
    EXPECT_EQ(net->norm->num_batches_tracked.item<std::int64_t>(), static_cast<std::int64_t>(step) + 1);
  }
}

TEST(LibtorchState, R10R22BuffersAreAveragedOnRequest) {
  auto net = on_device(std::make_shared<Normalised>());
  auto options = small_buckets();
  options.runtime.buffer_sync = BufferSync::average;
  Wrapped wrapped(world(), *net, options);
  auto const mine = net->linear->forward(rows_of_this_rank(0)).mean(0) * 0.1;
  loss_of(net->forward(rows_of_this_rank(0))).backward();
  expect_equal_on_ranks(net->buffers());
  torch::Tensor sum = mine.detach().to(torch::kDouble).cpu().contiguous();
  for (std::int64_t i = 0; i < sum.numel(); ++i) {
    sum[i] = world().all_reduce_scalar(sum[i].item<double>()) / world().size();
  }
  expect_near(net->norm->running_mean.cpu().to(torch::kDouble), sum);
}

TEST(LibtorchState, R10R22BuffersAreLeftAloneOnRequest) {
  auto net = on_device(std::make_shared<Normalised>());
  auto options = small_buckets();
  options.runtime.buffer_sync = BufferSync::never;
  Wrapped wrapped(world(), *net, options);
  auto alone = copy_of(*net);
  loss_of(net->forward(rows_of_this_rank(0))).backward();
  alone->forward(rows_of_this_rank(0));
  expect_near(net->norm->running_mean, alone->norm->running_mean);
}

// Its own version tells of a buffer that PyTorch wrote; under no_sync() the change waits.
TEST(LibtorchState, R10R22OnlyWhatHasChangedIsSent) {
  auto net = on_device(std::make_shared<Normalised>());
  net->eval();
  Wrapped wrapped(world(), *net, small_buckets());
  auto const mask = [&] { return net->mask.sum().item<std::int64_t>(); };
  // Behind the runtime's back, without a version: nothing sends it.
  bool* const bytes = net->mask.is_cpu() ? net->mask.data_ptr<bool>() : nullptr;
  if (bytes != nullptr) {
    bytes[0] = world().rank() == 0;
    loss_of(net->forward(rows_of_this_rank(0))).backward();
    EXPECT_EQ(mask(), world().rank() == 0 ? 4 : 3);
    wrapped.mark_buffers_dirty();
    wrapped.sync_buffers();
    EXPECT_EQ(mask(), 4);
  }
  net->mask.fill_(world().rank() == 0);
  {
    auto const guard = wrapped.no_sync();
    wrapped.sync_buffers();
    EXPECT_EQ(mask(), world().rank() == 0 ? 4 : 0);
  }
  wrapped.sync_buffers();
  EXPECT_EQ(mask(), 4);
}

// What one rank's program does to its buffers alone; the others' steps go on, and rank 0's values hold.
template <class Program>
void expect_rank_0s_values(Program const& program) {
  auto net = on_device(std::make_shared<Normalised>());
  Wrapped wrapped(world(), *net, small_buckets());
  for (std::uint64_t step = 0; step < 4; ++step) {
    net->zero_grad();
    loss_of(net->forward(rows_of_this_rank(step))).backward();
    if (step < 2) program(*net);
  }
  expect_equal_on_ranks(net->buffers());
}

TEST(LibtorchState, R10R22ARankThatForgetsToTrainAfterValidationTakesRank0sBuffers) {
  for (int const forgetful : {0, world().size() - 1}) {
    expect_rank_0s_values([&](Normalised& net) { net.train(world().rank() != forgetful); });
  }
}

TEST(LibtorchState, R10R22OneRankMayRunAForwardPassInTrainingMode) {
  expect_rank_0s_values([](Normalised& net) {
    torch::NoGradGuard const no_graph;
    if (world().rank() == 0) net.forward(rows_of_this_rank(7));
  });
}

TEST(LibtorchState, R10R22ABufferThatOneRankWritesIsMadeEqualAgain) {
  for (int const writer : {0, world().size() - 1}) {
    expect_rank_0s_values([&](Normalised& net) {
      if (world().rank() == writer) net.mask.fill_(false);
    });
  }
}

// A layer that counts what it is given.
struct ExpertImpl : torch::nn::Module {
  torch::Tensor weight = register_parameter("weight", torch::ones({6}));
  torch::Tensor rows = register_buffer("rows", torch::zeros({}, torch::kLong));
  torch::Tensor forward(torch::Tensor const& x) {
    rows.add_(x.size(0));
    return x * weight;
  }
};
TORCH_MODULE(Expert);
struct Experts : torch::nn::Module {
  Expert a = register_module("a", Expert());
  Expert b = register_module("b", Expert());
  torch::nn::Linear head = register_module("head", torch::nn::Linear(6, 1));
};

TEST(LibtorchState, R10R22RanksMayRunDifferentLayersThatChangeTheirBuffers) {
  for (bool const first_runs_one : {false, true}) {
    auto net = on_device(std::make_shared<Experts>());
    Wrapped wrapped(world(), *net);
    auto const step = [&](bool with_experts) {
      net->zero_grad();
      auto x = random_rows(2, 6, 1);
      if (with_experts && world().rank() != 0) x = net->b(x);
      if (with_experts && world().rank() == 0 && first_runs_one) x = net->a(x);
      net->head(x).sum().backward();
    };
    for (int i = 0; i < 3; ++i) step(true);
    EXPECT_EQ(net->b->weight.grad().defined(), world().size() > 1);
    step(false);  // a GPU's host hears a step later
    expect_equal_on_ranks(net->buffers());
    EXPECT_EQ(net->a->rows.item<std::int64_t>(), first_runs_one ? 6 : 0);
    EXPECT_EQ(net->b->rows.item<std::int64_t>(), 0);
  }
}

TEST(LibtorchState, R10R22BuffersMayGetNewMemory) {
  auto net = on_device(std::make_shared<Normalised>());
  Wrapped wrapped(world(), *net, small_buckets());
  net->norm->running_mean.set_data(torch::full_like(net->norm->running_mean, world().rank().value() + 1));
  wrapped.sync_buffers();
  EXPECT_EQ(net->norm->running_mean.sum().item<float>(), 4.0F);
}

// ---- checkpoints

#if DDP_HAS_OPENSSL
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

TEST(LibtorchState, R22ACheckpointResumesBitForBit) {
  resumes<torch::optim::SGD>("sgd", torch::optim::SGDOptions(0.1).momentum(0.9));
  resumes<torch::optim::Adam>("adam", torch::optim::AdamOptions(0.01).amsgrad(true));
  resumes<torch::optim::AdamW>("adamw", torch::optim::AdamWOptions(0.01));
  resumes<torch::optim::RMSprop>("rmsprop", torch::optim::RMSpropOptions(0.01).momentum(0.5).centered(true));
  resumes<torch::optim::Adagrad>("adagrad", torch::optim::AdagradOptions(0.01));
}

struct Oddities : torch::nn::Module {
  torch::Tensor transposed = register_parameter("transposed", torch::randn({4, 6}).t());
  torch::Tensor turned = register_parameter("turned", torch::randn({3}, torch::kComplexFloat));
  torch::nn::Linear once = register_module("once", torch::nn::Linear(4, 4));
  torch::nn::Linear again = register_module("again", once);
};

TEST(LibtorchState, R22CheckpointsHavePyTorchsNames) {
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
TEST(LibtorchState, R22ACheckpointOfSeveralModulesAndOptimizersResumesBitForBit) {
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

TEST(LibtorchState, R22EachRanksGeneratorsGoOnWhereTheyWere) {
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
TEST(LibtorchState, R22ARankThatDidNotWriteKeepsItsGenerators) {
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

TEST(LibtorchState, R22TwoPartsOfACheckpointCannotShareAName) {
  auto net = on_device(std::make_shared<TwoLayers>());
  auto other = on_device(std::make_shared<TwoLayers>());
  auto const messages = messages_of([&] {
    libtorch::Checkpoint const checkpoint(world(), fresh_folder("twice"), {{"net", *net}, {"net", *other}},
                                          {});
  });
  EXPECT_THAT(messages, Each(HasSubstr("two modules are called \"net\"")));
}

TEST(LibtorchState, R22AnOptimizerWithoutNamesIsRefused) {
  auto net = on_device(std::make_shared<TwoLayers>());
  torch::optim::LBFGS optimizer(net->parameters());
  auto const messages = messages_of(
      [&] { libtorch::Checkpoint const checkpoint(world(), fresh_folder("lbfgs"), *net, &optimizer); });
  EXPECT_THAT(messages, Each(HasSubstr("SGD, Adam, AdamW, RMSprop and Adagrad")));
}
#endif

// ---- data

struct Numbers : torch::data::Dataset<Numbers> {
  torch::data::Example<> get(std::size_t index) override {
    return {torch::tensor(static_cast<std::int64_t>(index)), torch::tensor(0)};
  }
  torch::optional<std::size_t> size() const override { return 23; }
};

TEST(LibtorchState, R21R22ALoaderGivesEachRankItsShareInANewOrderInEachEpoch) {
  libtorch::DistributedSampler sampler(23, world(),
                                       {.seed = 4, .tail = DistributedSamplerOptions::Tail::drop});
  auto loader = torch::data::make_data_loader(Numbers().map(torch::data::transforms::Stack<>()), sampler,
                                              torch::data::DataLoaderOptions(2).workers(0));
  std::set<std::string> orders;
  for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
    ddp::DistributedSampler expected(23, world(), {.seed = 4, .tail = DistributedSamplerOptions::Tail::drop});
    expected.set_epoch(epoch);
    std::vector<std::int64_t> wanted;
    for (Batch const& batch : expected.batches(2)) wanted.insert(wanted.end(), batch.begin(), batch.end());
    std::vector<std::int64_t> found;
    for (auto const& batch : *loader) {
      for (std::int64_t i = 0; i < batch.data.numel(); ++i)
        found.push_back(batch.data[i].item<std::int64_t>());
    }
    EXPECT_EQ(sampler.epoch(), epoch);
    EXPECT_EQ(found, wanted) << "epoch " << epoch;
    orders.insert(join(found, ","));
  }
  EXPECT_EQ(orders.size(), 3U);
}

TEST(LibtorchState, R21R22ASamplerGoesOnWhereItWas) {
  libtorch::DistributedSampler sampler(40, world(), {.seed = 4});
  sampler.set_epoch(2);
  sampler.reset(std::nullopt);
  sampler.next(2);
  std::stringstream file;
  torch::serialize::OutputArchive out;
  sampler.save(out);
  out.save_to(file);
  libtorch::DistributedSampler other(40, world(), {.seed = 4});
  torch::serialize::InputArchive in;
  in.load_from(file);
  other.load(in);
  other.reset(std::nullopt);
  EXPECT_EQ(other.epoch(), 2U);
  EXPECT_EQ(other.samples_given(), static_cast<std::size_t>(2 * world().size()));
  EXPECT_EQ(other.next(2), sampler.next(2));
}

}  // namespace
}  // namespace ddp::testing
