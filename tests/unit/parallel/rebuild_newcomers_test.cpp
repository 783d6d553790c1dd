// New processes that stand for lost ranks (R26).
#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>

#include "ddp/ddp.hpp"
#include "support/errors.hpp"
#include "support/models/toy_model.hpp"
#include "support/ranks/in_process_worlds.hpp"
#include "support/ranks/surviving_ranks.hpp"
#include "support/ranks/world_values.hpp"

namespace ddp::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The same program in both: it goes on until so many steps are done by so many ranks.
struct Program {
  explicit Program(World& in) : world(in), model({300, 7}, in.rank().value()), ddp(in, model.parameters()) {}

  void step() {
    do_step(world, model, ddp);
    ++position;
  }
  /// Ends in step `last`; those who wait for that many ranks go on until they are there.
  void go_on(Replicated& alike, int last, int ranks) {
    while (position < last || world.size() < ranks) {
      try {
        step();
      } catch (CommError const& error) {
        world.rebuild(error, alike);
        last = std::max(last, position + 3);
      }
    }
  }

  World& world;
  ToyModel model;
  DistributedDataParallel ddp;
  int position = 0;
};

TEST(WorldRebuild, R26ANewcomerStandsInTheLostOnesPlaceWithTheValuesOfTheOthers) {
  SurvivingRanks ranks(3);
  std::thread other([&] {
    ranks.newcomer(1, [](World& world) {
      Program program(world);
      DistributedSampler const sampler(12, world, {.shuffle = false});
      program.model.values[0][0] = -1.0F;
      EXPECT_EQ(world.all_reduce_scalar(1), 1) << "alone";
      world.barrier();
      Replicated alike(world, {&program.position});
      EXPECT_FALSE(world.is_newcomer());
      EXPECT_EQ(world.rank(), 1);
      EXPECT_EQ(world.size(), 3);
      EXPECT_GE(program.position, 4);
      EXPECT_EQ(program.ddp.steps(), static_cast<std::uint64_t>(program.position));
      EXPECT_NE(program.model.values[0][0], -1.0F);
      program.go_on(alike, std::max(8, program.position + 3), 3);
      world.barrier();
    });
  });
  ranks.run([&](World& world) {
    Program program(world);
    Replicated alike(world, {&program.position});
    for (int i = 0; i < 4; ++i) program.step();
    meet(world);
    if (world.rank() == 1) {
      ranks.die(world);
    }
    program.go_on(alike, 8, 3);
    EXPECT_THAT(world.members(), ElementsAre(Rank{0}, Rank{1}, Rank{2}));
    world.barrier();
  });
  other.join();
}

// As when a rank that noticed the newcomer earlier has closed the memory that this one is about to open.
TEST(WorldRebuild, R26WhatFailsSinceANewcomerHasComeMeanwhileBeginsAnew) {
  SurvivingRanks ranks(3);
  std::atomic<int> failed{0};
  std::thread other([&] {
    ranks.newcomer(1, [&](World& world) {
      Follower const follower(world, 0);
      while (failed == 0) std::this_thread::yield();
      Replicated const alike(world, {});
      EXPECT_EQ(world.size(), 3);
      EXPECT_EQ(follower.value, 5);
    });
  });
  ranks.run([&](World& world) {
    bool const dies = world.rank() == 1;
    Follower follower(world, 7);
    follower.value = 5;
    Replicated alike(world, {});
    if (dies) ranks.die(world);
    follower.on_follow = [&] {
      if (world.size() == 3) return;
      ++failed;
      while (!world.control().interruption()) std::this_thread::yield();
      throw Error(ErrorCode::io, "there is no such memory");
    };
    world.rebuild(loss_of(world), alike);
    EXPECT_EQ(failed, 2) << "without the newcomer";
    EXPECT_EQ(world.size(), 3);
    EXPECT_EQ(follower.value, 5);
  });
  other.join();
}

TEST(WorldRebuild, R26ANewcomerOfAnotherFormIsToldHowItDiffersAndTheOthersGoOn) {
  SurvivingRanks ranks(2);
  std::atomic<bool> refused{false};
  std::thread other([&] {
    ranks.newcomer(1, [&](World& world) {
      Follower follower(world, 0);
      follower.shape = "f64[2]\n";
      CommError const error = error_of<CommError>([&] { Replicated alike(world, {}); });
      EXPECT_EQ(error.code(), ErrorCode::mismatch);
      EXPECT_THAT(error.what(), HasSubstr("the new process of rank 1 has f64[2] where rank 0 has f64[1]"));
      refused = true;
      ranks.die(world);
    });
  });
  ranks.run([&](World& world) {
    Follower follower(world, 7);
    follower.value = 5;
    Replicated alike(world, {});
    if (world.rank() == 1) {
      ranks.die(world);
    }
    world.rebuild(loss_of(world), alike);
    EXPECT_THAT(world.members(), ElementsAre(Rank{0}));
    rebuild_with_newcomer(world, alike, refused);
    EXPECT_THAT(world.members(), ElementsAre(Rank{0}));
    EXPECT_EQ(follower.value, 5);
  });
  other.join();
}

}  // namespace
}  // namespace ddp::testing
