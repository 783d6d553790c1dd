// Wrapped modules that go on when a rank is lost (R26). Ranks are threads, on CPUs.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <cstdint>
#include <latch>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "ddp/ddp.hpp"
#include "ddp/libtorch.hpp"
#include "libtorch/rebuild_models.hpp"
#include "support/errors.hpp"
#include "support/ranks/surviving_ranks.hpp"

namespace ddp::testing {
namespace {

using ::testing::HasSubstr;

std::vector<std::pair<std::string, MakeOptimizer>> optimizers() {
  return {{"this library's AdamW",
           [](std::vector<at::Tensor> of) -> std::unique_ptr<torch::optim::Optimizer> {
             return std::make_unique<libtorch::AdamW>(std::move(of), torch::optim::AdamWOptions(1e-2));
           }},
          {"PyTorch's AdamW",
           [](std::vector<at::Tensor> of) -> std::unique_ptr<torch::optim::Optimizer> {
             return std::make_unique<torch::optim::AdamW>(std::move(of), torch::optim::AdamWOptions(1e-2));
           }},
          {"PyTorch's SGD", [](std::vector<at::Tensor> of) -> std::unique_ptr<torch::optim::Optimizer> {
             return std::make_unique<torch::optim::SGD>(std::move(of),
                                                        torch::optim::SGDOptions(1e-2).momentum(0.9));
           }}};
}
MakeOptimizer adamw() { return optimizers().front().second; }

/// Three ranks, of which one dies in the backward pass of a step; then two. Returns the weights, and how many
/// steps three ranks have done.
std::pair<std::string, std::int64_t> train_with_a_loss(MakeOptimizer const& make, int victim, bool to_none) {
  SurvivingRanks ranks(3);
  std::mutex mutex;
  std::vector<std::string> ends;
  std::int64_t with_three = 0;
  ranks.run([&](World& world) {
    int const old = world.rank().value();
    Training training(world, make);
    training.to_none = to_none;
    training.net->in_backward = [&] {
      if (old == victim && training.done == 4) ranks.die(world);
    };
    Replicated alike(world, {libtorch::replicated(world, *training.optimizer), &training.done});
    int losses = 0;
    while (training.done < kLast) {
      try {
        training.step();
      } catch (CommError const& error) {
        world.rebuild(error, alike);
        ++losses;
        std::lock_guard const lock(mutex);
        with_three = training.done;
      }
    }
    EXPECT_EQ(losses, 1);
    EXPECT_EQ(training.model.runtime().steps(), static_cast<std::uint64_t>(kLast));
    world.barrier();
    std::lock_guard const lock(mutex);
    ends.push_back(bytes_of(*training.net));
  });
  EXPECT_EQ(ends.size(), 2U);
  EXPECT_EQ(ends.front(), ends.back()) << "the ranks differ";
  return {ends.front(), with_three};
}

/// The same schedule of ranks, of which none dies.
std::string replay(MakeOptimizer const& make, std::int64_t with_three) {
  std::mutex mutex;
  std::vector<at::Tensor> weights;
  std::string state;
  SurvivingRanks(3).run([&](World& world) {
    Training training(world, make);
    while (training.done < with_three) training.step();
    world.barrier();
    if (world.rank() != 0) return;
    for (auto const& each : training.net->parameters()) weights.push_back(each.detach().clone());
    state = training.state();
  });
  std::string end;
  SurvivingRanks(2).run([&](World& world) {
    Training training(world, make);
    {
      torch::NoGradGuard const no_graph;
      std::size_t p = 0;
      for (auto& each : training.net->parameters()) each.copy_(weights[p++]);
    }
    training.done = with_three;
    {
      std::lock_guard const lock(mutex);
      training.take_state(state);
    }
    while (training.done < kLast) training.step();
    world.barrier();
    if (world.rank() == 0) end = bytes_of(*training.net);
  });
  return end;
}

TEST(LibtorchRebuild, R26WithoutALostRankTheOthersGiveTheBitsOfThatScheduleOfRanks) {
  for (auto const& [name, make] : optimizers()) {
    for (int const victim : {0, 2}) {
      SCOPED_TRACE(name + (victim == 0 ? ", without the first rank" : ", without the last rank"));
      auto const [found, with_three] = train_with_a_loss(make, victim, true);
      EXPECT_EQ(with_three, 4);
      EXPECT_EQ(found, replay(make, with_three));
    }
  }
}

TEST(LibtorchRebuild, R26AProgramThatKeepsItsGradientsInPlaceGoesOnToo) {
  auto const [found, with_three] = train_with_a_loss(adamw(), 1, false);
  EXPECT_EQ(found, replay(adamw(), with_three));
}

// Rank 0 dies in step 4, behind its update. With `joins` rank 2 has no data in that step. Returns the
// weights.
std::string train_with_a_loss_while_buffers_travel(bool joins) {
  SurvivingRanks ranks(3);
  std::mutex mutex;
  std::latch updated(3);
  std::vector<std::string> ends;
  ranks.run([&](World& world) {
    int const old = world.rank().value();
    auto options = several_buckets();
    options.runtime.verify_every = 1;  // then all parameters are updated at once, just before buffers travel
    if (joins) options.runtime.uneven = DistributedDataParallelOptions::Uneven::divide_by_live;
    Training training(world, adamw(), options);
    auto& optimizer = dynamic_cast<libtorch::AdamW&>(*training.optimizer);
    training.model.on_bucket_ready([&](std::vector<at::Tensor> const& parameters) {
      optimizer.update(parameters);
      if (world.membership() > 0 || training.done != 4) return;
      updated.arrive_and_wait();
      if (old == 0) ranks.die(world);
    });
    Replicated alike(world, {libtorch::replicated(world, optimizer), &training.done});
    int losses = 0;
    while (training.done < kLast) {
      try {
        if (joins && old == 2 && training.done == 4) training.model.join([&] { ++training.done; });
        training.backward();
        ++training.done;
      } catch (CommError const& error) {
        EXPECT_EQ(training.done, 5);
        EXPECT_EQ(error.failure().ranks, std::vector<Rank>{Rank{0}}) << error.what();
        world.rebuild(error, alike);
        EXPECT_EQ(training.done, 5);
        ++losses;
      }
    }
    EXPECT_EQ(losses, 1);
    world.barrier();
    std::lock_guard const lock(mutex);
    ends.push_back(bytes_of(*training.net));
  });
  EXPECT_EQ(ends.size(), 2U);
  EXPECT_EQ(ends.front(), ends.back()) << "the ranks differ";
  return ends.front();
}

// on_bucket_ready() has updated by then, so the step counts: done again it would update twice.
TEST(LibtorchRebuild, R26R15WhoIsLostWhileBuffersTravelIsMissingInTheNextStep) {
  EXPECT_EQ(train_with_a_loss_while_buffers_travel(false), replay(adamw(), 5));
}

TEST(LibtorchRebuild, R26R15R11SoIsWhoIsLostInAStepOfARankWithoutData) {
  static_cast<void>(train_with_a_loss_while_buffers_travel(true));
}

TEST(LibtorchRebuild, R26AnOldGradientStaysReadableAndTheNewOneIsInNewMemory) {
  SurvivingRanks ranks(2);
  ranks.run([&](World& world) {
    Training training(world, adamw());
    training.step();
    at::Tensor const& weight = training.net->first->weight;
    at::Tensor const old = weight.grad();
    at::Tensor const copy = old.clone();
    Replicated alike(world, {});
    if (world.rank() == 1) ranks.die(world);
    world.rebuild(loss_of(world), alike);
    EXPECT_FALSE(weight.grad().defined());
    training.step();
    EXPECT_TRUE(old.equal(copy));
    ASSERT_TRUE(weight.grad().defined());
    EXPECT_NE(weight.grad().data_ptr(), old.data_ptr());
  });
}

// Micro-steps of the broken step are lost: the program runs them again.
TEST(LibtorchRebuild, R26SumsOfMicroStepsBeginAnewAndALivingGuardIsRefused) {
  SurvivingRanks ranks(3);
  ranks.run([&](World& world) {
    int const old = world.rank().value();
    Training training(world, adamw());
    Replicated alike(world, {libtorch::replicated(world, *training.optimizer), &training.done});
    auto const micro_steps = [&] {
      training.net->zero_grad();
      {
        auto const guard = training.model.no_sync();
        training.net->loss(training.rows()).backward();
      }
      if (old == 1 && world.membership() == 0) ranks.die(world);
      training.net->loss(training.rows()).backward();
    };
    CommError const error = error_of<CommError>(micro_steps);
    {
      auto const guard = training.model.no_sync();
      EXPECT_THAT(error_of([&] { world.rebuild(error, alike); }).what(),
                  HasSubstr("a guard of no_sync() lives"));
    }
    world.rebuild(error, alike);
    micro_steps();
    at::Tensor const sum = training.net->second->bias.grad().clone();
    training.net->zero_grad();
    training.net->loss(training.rows()).backward();
    EXPECT_TRUE(torch::allclose(sum, 2 * training.net->second->bias.grad(), 1e-4, 1e-6));
  });
}

TEST(LibtorchRebuild, R26BuffersAreThoseOfOneRankAndAreSentAgain) {
  SurvivingRanks ranks(3);
  std::mutex mutex;
  std::vector<at::Tensor> means;
  ranks.run([&](World& world) {
    int const old = world.rank().value();
    Training training(world, adamw());
    Replicated alike(world, {libtorch::replicated(world, *training.optimizer), &training.done});
    training.step();
    if (old == 0) ranks.die(world);
    // torch::load() gives it other memory.
    training.net->norm->running_var.set_data(torch::full({16}, 5.0 + old));
    world.rebuild(error_of<CommError>([&] { training.step(); }), alike);
    EXPECT_TRUE(training.net->norm->running_var.equal(training.net->norm->running_var.clone()));
    training.step();
    world.barrier();
    std::lock_guard const lock(mutex);
    means.push_back(training.net->norm->running_mean.clone());
    means.push_back(training.net->norm->running_var.clone());
  });
  ASSERT_EQ(means.size(), 4U);
  EXPECT_TRUE(means[0].equal(means[2]));
  EXPECT_TRUE(means[1].equal(means[3]));
}

TEST(LibtorchRebuild, R26SyncBatchNormGoesOnWithTheStatisticsOfTheRanksThatAreLeft) {
  SurvivingRanks ranks(4);
  std::mutex mutex;
  std::vector<at::Tensor> outputs;
  at::Tensor expected;
  ranks.run([&](World& world) {
    int const old = world.rank().value();
    std::shared_ptr<torch::nn::SequentialImpl> net;
    {
      std::lock_guard const lock(Training::seed_mutex());
      torch::manual_seed(1);
      net = torch::nn::Sequential(torch::nn::Linear(6, 4)).ptr();
    }
    net->push_back(libtorch::SyncBatchNorm(world, 4));
    Wrapped model(world, *net);
    Replicated alike(world, {});
    auto const all = torch::arange(72.0).reshape({12, 6}).sin();
    auto const forward = [&] { return net->forward(all.chunk(world.size()).at(world.rank().index())); };
    forward().square().sum().backward();
    if (old == 1) ranks.die(world);
    world.rebuild(error_of<CommError>([&] { static_cast<void>(forward()); }), alike);
    net->zero_grad();
    auto const output = forward();
    output.pow(3).sum().backward();
    world.barrier();
    std::lock_guard const lock(mutex);
    outputs.resize(3);
    outputs[world.rank().index()] = output.detach();
    if (world.rank() == 0) {
      auto const hidden = net->ptr<torch::nn::LinearImpl>(0)->forward(all);
      expected = torch::batch_norm(hidden, {}, {}, {}, {}, true, 0, 1e-5, false).detach();
    }
  });
  EXPECT_TRUE(torch::allclose(torch::cat(outputs), expected, 1e-4, 1e-5));
}

// A generator and a discriminator; a rank dies between their steps.
TEST(LibtorchRebuild, R26TwoModulesGoOn) {
  SurvivingRanks ranks(3);
  std::mutex mutex;
  std::vector<std::string> ends;
  ranks.run([&](World& world) {
    int const old = world.rank().value();
    Training one(world, adamw());
    Training other(world, optimizers()[1].second);
    Replicated alike(world, {libtorch::replicated(world, *one.optimizer), &one.done,
                             libtorch::replicated(world, *other.optimizer), &other.done});
    while (other.done < kLast) {
      try {
        if (one.done == other.done) one.step();
        if (old == 1 && other.done == 3) ranks.die(world);
        other.step();
      } catch (CommError const& error) {
        world.rebuild(error, alike);
        EXPECT_EQ(one.done, 4);
        EXPECT_EQ(other.done, 3);
      }
    }
    world.barrier();
    std::lock_guard const lock(mutex);
    ends.push_back(bytes_of(*one.net) + bytes_of(*other.net));
  });
  ASSERT_EQ(ends.size(), 2U);
  EXPECT_EQ(ends[0], ends[1]);
}

TEST(LibtorchRebuild, R26ATensorWithGapsIsNoPartOfReplicated) {
  SurvivingRanks(1).run([](World& world) {
    at::Tensor const whole = torch::zeros({4, 4});
    Replicated const alike(world, {libtorch::replicated(world, whole.t())});
    EXPECT_EQ(alike.tensors().front().bytes(), 64U);
    EXPECT_THAT(error_of([&] { static_cast<void>(libtorch::replicated(world, whole.select(1, 0))); }).what(),
                HasSubstr("has gaps"));
  });
}

}  // namespace
}  // namespace ddp::testing
