// Programs with several models, and with a StepGraph, that go on after a loss (R26).
#include <gmock/gmock.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "ddp/ddp.hpp"
#include "support/errors.hpp"
#include "support/models/toy_model.hpp"
#include "support/ranks/in_process_worlds.hpp"
#include "support/ranks/surviving_ranks.hpp"
#include "support/ranks/world_values.hpp"

namespace ddp::testing {
namespace {

using ::testing::HasSubstr;

TEST(WorldRebuild, R26OfSeveralModelsAllAreThoseOfTheRankThatHasDoneMostSteps) {
  SurvivingRanks ranks(4);
  ranks.run([&](World& world) {
    int const old = world.rank().value();
    std::uint64_t const first = old == 2 ? 7 : 8;
    Follower one(world, first);
    Follower other(world, old == 1 ? 8 : 7);
    one.value = 10 + old;
    other.value = 20 + old;
    int position = old;
    Replicated alike(world, {&position});
    if (old == 3) ranks.die(world);
    world.rebuild(loss_of(world), alike);
    EXPECT_EQ(one.value, 11);
    EXPECT_EQ(other.value, 21);
    EXPECT_EQ(one.steps_done, 8U);
    EXPECT_EQ(other.steps_done, 8U);
    EXPECT_EQ(position, 1);
    EXPECT_EQ(one.follows + other.follows, 2);
  });
}

TEST(WorldRebuild, R26OfRanksWithAsManyStepsOneThatHasTheLastUpdateGivesTheValues) {
  SurvivingRanks ranks(4);
  ranks.run([&](World& world) {
    int const old = world.rank().value();
    Follower one(world, 8);
    one.awaits = old == 0;
    one.value = old;
    Replicated alike(world, {});
    if (old == 3) ranks.die(world);
    world.rebuild(loss_of(world), alike);
    EXPECT_EQ(one.value, 1);
  });
}

TEST(WorldRebuild, R26SeveralModelsGoOnWithWhatTheirTrainingComputes) {
  SurvivingRanks ranks(4);
  ranks.run([&](World& world) {
    int const old = world.rank().value();
    std::array<ToyModel, 2> models{ToyModel({300, 7}, old), ToyModel({50}, old)};
    std::vector<DistributedDataParallel> ddp;
    for (ToyModel& model : models) ddp.emplace_back(world, model.parameters());
    std::array<int, 2> done{};
    Replicated alike(world, {&done});
    auto const train = [&] {  // done[0] is ahead of done[1], or as far
      while (done[1] < 6) {
        std::size_t const now = done[0] == done[1] ? 0 : 1;
        if (old == 2 && now == 1 && done[1] == 3) ranks.die(world);
        do_step(world, models[now], ddp[now]);
        EXPECT_EQ(models[now].gradients[0][3], ToyModel::average_gradient(0, 3, world.size()));
        ++done[now];
      }
    };
    world.rebuild(error_of<CommError>(train), alike);
    EXPECT_EQ(done[0], 4);
    EXPECT_EQ(done[1], 3);
    train();
    EXPECT_EQ(ddp[0].steps(), 6U);
    EXPECT_EQ(ddp[1].steps(), 6U);
    world.barrier();
  });
}

TEST(WorldRebuild, R26ModelsWhoseStepsComeInAnotherOrderAreRefusedOnEveryRank) {
  SurvivingRanks ranks(3);
  ranks.run([&](World& world) {
    int const old = world.rank().value();
    Follower one(world, old == 1 ? 7 : 8);
    Follower other(world, old == 1 ? 8 : 7);
    Replicated alike(world, {});
    if (old == 2) ranks.die(world);
    CommError const error = error_of<CommError>([&] { world.rebuild(loss_of(world), alike); });
    EXPECT_EQ(error.code(), ErrorCode::mismatch);
    EXPECT_THAT(error.what(),
                HasSubstr("objects of rank 1 have done 7 and 8 steps, those of rank 0 8 and 7"));
  });
}

// Ranks that were a step apart must not ask at different times whether all can record.
TEST(WorldRebuild, R26AStepGraphOfCpusGoesOn) {
  for (int const last : {0, 1, 2, 3, 4}) {
    SurvivingRanks ranks(3);
    ranks.run([&](World& world) {
      int const old = world.rank().value();
      ToyModel model({300, 7}, old);
      DistributedDataParallel ddp(world, model.parameters());
      int position = 0;
      StepGraph graph(ddp, [&] {
        do_step(world, model, ddp);
        EXPECT_EQ(model.gradients[1][3], ToyModel::average_gradient(1, 3, world.size()));
        ++position;
      });
      Replicated alike(world, {&position});
      while (position < 10) {
        try {
          if (old == 1 && position == last) ranks.die(world);
          graph.run();
        } catch (CommError const& error) {
          world.rebuild(error, alike);
        }
      }
      EXPECT_THAT(std::string(graph.why_eager()), HasSubstr("a CPU has no CUDA graphs"));
      EXPECT_EQ(world.size(), 2);
      world.barrier();
    });
  }
}

}  // namespace
}  // namespace ddp::testing
