// Training steps of wrapped modules, against one process that trains on the whole batch.
#include "libtorch/models.hpp"
#include "parallel/ddp/reducer_access.hpp"

namespace ddp::testing {
namespace {

// Which gradients there are between steps.
enum class Zero { none, zeros };

void trains_like_one_process(Zero zero, Wrapped::Options const& options) {
  torch::manual_seed(17 + world().rank().value());  // only rank 0's values count
  auto net = on_device(std::make_shared<TwoLayers>());
  Wrapped wrapped(world(), *net, options);
  expect_equal_on_ranks(net->parameters());
  auto whole = copy_of(*net);
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  torch::optim::SGD expected(whole->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (std::uint64_t step = 0; step < 6; ++step) {
    auto const rows = random_rows(4 * world().size(), 6, step);
    optimizer.zero_grad(zero == Zero::none);
    expected.zero_grad();
    loss_of(net->forward(shard(rows))).backward();
    loss_of(whole->forward(rows)).backward();
    expect_same_gradients(*net, *whole);
    optimizer.step();
    expected.step();
  }
  expect_equal_on_ranks(net->parameters());
  EXPECT_EQ(wrapped.runtime().steps(), 6U);
}

TEST(LibtorchSteps, R22TrainsLikeOneProcessWhereGradientsBecomeUndefined) {
  trains_like_one_process(Zero::none, small_buckets());
}
TEST(LibtorchSteps, R22TrainsLikeOneProcessWhereGradientsBecomeZeros) {
  trains_like_one_process(Zero::zeros, small_buckets());
}
TEST(LibtorchSteps, R22TrainsLikeOneProcessWithOneBucket) { trains_like_one_process(Zero::none, {}); }

TEST(LibtorchSteps, R20StatisticsAreOfTheStepsOfBackward) {
  auto net = on_device(std::make_shared<TwoLayers>());
  Wrapped::Options options = small_buckets();
  options.runtime.statistics = true;
  Wrapped wrapped(world(), *net, options);
  for (std::uint64_t step = 0; step < 20; ++step) {
    net->zero_grad();
    auto const guard = wrapped.no_sync(step % 2 == 0);
    if (step % 2 != 0) wrapped.begin_forward();
    loss_of(net->forward(random_rows(4, 6, step))).backward();
    world().stream().synchronize();
    if (torch::cuda::is_available()) torch::cuda::synchronize();
  }
  auto const newest = wrapped.runtime().statistics();
  ASSERT_TRUE(newest.has_value());
  EXPECT_GE(newest->step, 1U);
  EXPECT_LE(newest->step, 9U);
  EXPECT_EQ(newest->order.size(), net->parameters().size());
  EXPECT_EQ(newest->late_ms.size(), static_cast<std::size_t>(world().size()));
  ASSERT_TRUE(newest->forward_ms.has_value());
  EXPECT_GT(*newest->forward_ms, 0);
}

TEST(LibtorchSteps, R22GradientsArePartsOfBuckets) {
  auto net = on_device(std::make_shared<TwoLayers>());
  Wrapped wrapped(world(), *net, small_buckets());
  for (int step = 0; step < 4; ++step) {
    loss_of(net->forward(random_rows(4, 6, 1))).backward();
    auto const parameters = net->parameters();
    std::vector<void const*> places;
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      torch::Tensor const& gradient = parameters[p].grad();
      ASSERT_EQ(gradient.data_ptr(), reducer_of(wrapped.runtime()).gradient(p).data) << "step " << step;
      EXPECT_EQ(gradient.sizes(), parameters[p].sizes());
      EXPECT_EQ(gradient.strides(), parameters[p].strides());
      places.push_back(gradient.data_ptr());
    }
    net->zero_grad(step % 2 == 0);
    if (step % 2 == 0) continue;
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      EXPECT_EQ(parameters[p].grad().data_ptr(), places[p]);
      EXPECT_EQ(parameters[p].grad().abs().sum().item<float>(), 0.0F);
    }
  }
}

TEST(LibtorchSteps, R22NoSyncAddsUpOnThisRankAndTheNextStepSendsTheSum) {
  for (bool const zeros : {false, true}) {
    auto net = on_device(std::make_shared<TwoLayers>());
    Wrapped wrapped(world(), *net, small_buckets());
    auto whole = copy_of(*net);
    for (std::uint64_t step = 0; step < 3; ++step) {
      net->zero_grad(!zeros);
      whole->zero_grad();
      for (std::uint64_t micro = 0; micro < 3; ++micro) {
        auto const rows = random_rows(4 * world().size(), 6, 10 * step + micro);
        auto const guard = wrapped.no_sync(micro < 2);
        loss_of(net->forward(shard(rows))).backward();
        loss_of(whole->forward(rows)).backward();
      }
      expect_same_gradients(*net, *whole);
    }
    EXPECT_EQ(wrapped.runtime().steps(), 3U);
  }
}

// The last micro-step reaches the second layer's parameters only.
TEST(LibtorchSteps, R22NoSyncKeepsGradientsOfParametersThatOnlyItUsed) {
  auto net = on_device(std::make_shared<TwoLayers>());
  Wrapped wrapped(world(), *net, small_buckets());
  auto whole = copy_of(*net);
  auto const rows = random_rows(4 * world().size(), 6, 1);
  auto const inner = random_rows(4 * world().size(), 8, 2);
  {
    auto const guard = wrapped.no_sync();
    loss_of(net->forward(shard(rows))).backward();
  }
  loss_of(net->second(shard(inner))).backward();
  loss_of(whole->forward(rows)).backward();
  loss_of(whole->second(inner)).backward();
  expect_same_gradients(*net, *whole);
}

TEST(LibtorchSteps, R22AGuardMayOutliveWhatItGuards) {
  libtorch::NoSyncGuard guard;
  auto net = on_device(std::make_shared<TwoLayers>());
  {
    Wrapped wrapped(world(), *net);
    guard = wrapped.no_sync();
  }
  guard = {};
}

TEST(LibtorchSteps, R22WeightsOfRanksCount) {
  auto net = on_device(std::make_shared<TwoLayers>());
  Wrapped wrapped(world(), *net, small_buckets());
  auto whole = copy_of(*net);
  auto const rows = random_rows(10, 6, 1);
  // Rank 0 has all rows but one of each other rank.
  std::int64_t const others = world().size() - 1;
  std::int64_t const rank = world().rank().value();
  auto const mine = rank == 0 ? rows.slice(0, others) : rows.slice(0, rank - 1, rank);
  wrapped.set_weight(static_cast<double>(mine.size(0)));
  loss_of(net->forward(mine)).backward();
  loss_of(whole->forward(rows)).backward();
  expect_same_gradients(*net, *whole);
}

// ---- which parameters are used

TEST(LibtorchSteps, R22AParameterThatNoRankUsedKeepsAnUndefinedGradient) {
  auto net = on_device(std::make_shared<TwoLayers>());
  Wrapped wrapped(world(), *net, small_buckets());
  for (int step = 0; step < 3; ++step) {
    net->zero_grad();
    loss_of(net->second(random_rows(4, 8, 1))).backward();
    EXPECT_FALSE(net->first->weight.grad().defined());
    EXPECT_TRUE(net->second->weight.grad().defined());
  }
}

TEST(LibtorchSteps, R22WithoutSkippingItIsZeroAndNothingWaits) {
  auto net = on_device(std::make_shared<TwoLayers>());
  auto options = small_buckets();
  options.skip_unused = false;
  Wrapped wrapped(world(), *net, options);
  loss_of(net->second(random_rows(4, 8, 1))).backward();
  ASSERT_TRUE(net->first->weight.grad().defined());
  EXPECT_EQ(net->first->weight.grad().abs().sum().item<float>(), 0.0F);
}

// The graphs differ: each rank but the last skips the first layer.
TEST(LibtorchSteps, R22AParameterThatSomeRanksUsedCountsAsZeroOnTheOthers) {
  auto net = on_device(std::make_shared<TwoLayers>());
  Wrapped wrapped(world(), *net, small_buckets());
  auto whole = copy_of(*net);
  auto const rows = random_rows(4, 6, 1);
  auto const inner = random_rows(4, 8, 2);
  bool const last = world().rank().value() == world().size() - 1;
  for (int step = 0; step < 3; ++step) {
    net->zero_grad();
    whole->zero_grad();
    loss_of(last ? net->forward(rows) : net->second(inner)).backward();
    auto expected = loss_of(whole->forward(rows));
    for (int r = 1; r < world().size(); ++r) expected = expected + loss_of(whole->second(inner));
    (expected / world().size()).backward();
    expect_same_gradients(*net, *whole);
  }
}

TEST(LibtorchSteps, R22ARankWithoutABackwardPassEndsTheStepByHand) {
  auto net = on_device(std::make_shared<TwoLayers>());
  Wrapped wrapped(world(), *net, small_buckets());
  auto whole = copy_of(*net);
  auto const rows = random_rows(4, 6, 1);
  bool const idle = world().size() > 1 && world().rank() == 0;
  wrapped.set_weight(idle ? 0 : 1);
  if (idle) {
    wrapped.synchronize();
  } else {
    loss_of(net->forward(rows)).backward();
  }
  loss_of(whole->forward(rows)).backward();
  expect_same_gradients(*net, *whole);
}

TEST(LibtorchSteps, R22FrozenParametersAreEqualAtTheStartAndStayAsTheyAre) {
  torch::manual_seed(3 + world().rank().value());
  auto net = on_device(std::make_shared<TwoLayers>());
  net->first->weight.requires_grad_(false);
  Wrapped wrapped(world(), *net, small_buckets());
  expect_equal_on_ranks(net->parameters());
  auto const before = net->first->weight.clone();
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  loss_of(net->forward(random_rows(4, 6, 1))).backward();
  optimizer.step();
  EXPECT_FALSE(net->first->weight.grad().defined());
  EXPECT_TRUE(torch::equal(net->first->weight, before));
  EXPECT_EQ(wrapped.runtime().parameters().size(), 3U);
}

// One module in two places: autograd adds what both give before the hook.
struct Tied : torch::nn::Module {
  torch::nn::Linear once = register_module("once", torch::nn::Linear(5, 5));
  torch::nn::Linear again = register_module("again", once);
  torch::Tensor forward(torch::Tensor const& x) { return again(torch::tanh(once(x))); }
};

TEST(LibtorchSteps, R22TiedParametersAreOneParameter) {
  auto net = on_device(std::make_shared<Tied>());
  Wrapped wrapped(world(), *net, small_buckets());
  ASSERT_EQ(wrapped.runtime().parameters().size(), 2U);
  EXPECT_EQ(wrapped.runtime().parameters()[0].name, "once.weight");
  auto whole = copy_of(*net);
  for (std::uint64_t step = 0; step < 3; ++step) {
    auto const rows = random_rows(4 * world().size(), 5, step);
    net->zero_grad();
    whole->zero_grad();
    loss_of(net->forward(shard(rows))).backward();
    loss_of(whole->forward(rows)).backward();
    expect_same_gradients(*net, *whole);
  }
}

}  // namespace
}  // namespace ddp::testing
