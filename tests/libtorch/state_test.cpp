// What a training keeps between steps: buffers, its place in the data.
#include <set>
#include <sstream>

#include "ddp/core/text.hpp"
#include "libtorch/state_models.hpp"

namespace ddp::testing {
namespace {

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
