// Ranks of which none, or not every one, has the values of a whole number of steps (R26).
#include <gmock/gmock.h>

#include <atomic>
#include <thread>

#include "ddp/ddp.hpp"
#include "ddp/parallel/autograd_support.hpp"
#include "support/errors.hpp"
#include "support/models/toy_model.hpp"
#include "support/ranks/in_process_worlds.hpp"
#include "support/ranks/surviving_ranks.hpp"
#include "support/ranks/world_values.hpp"

namespace ddp::testing {
namespace {

using ::testing::HasSubstr;

TEST(WorldRebuild, R26WhoHasAWholeNumberOfStepsGivesItsValuesAlsoIfOthersHaveDoneMore) {
  SurvivingRanks ranks(4);
  ranks.run([&](World& world) {
    int const old = world.rank().value();
    Follower follower(world, old == 1 ? 7 : 8);
    follower.whole = old == 1 || old == 3;
    follower.value = 10 + old;
    Replicated alike(world, {}, [] { ADD_FAILURE() << "a rank has all"; });
    if (old == 3) ranks.die(world);
    world.rebuild(loss_of(world), alike);
    EXPECT_EQ(follower.value, 11);
    EXPECT_EQ(follower.steps_done, 7U);
  });
}

TEST(WorldRebuild, R26WhereNoRankHasAllTheyGoBackTogether) {
  SurvivingRanks ranks(3);
  ranks.run([&](World& world) {
    int const old = world.rank().value();
    Follower follower(world, 7);
    follower.whole = false;
    follower.value = 10 + old;
    int backs = 0;
    Replicated alike(world, {}, [&] {
      ++backs;
      EXPECT_EQ(follower.follows, 1) << "with new communicators";
      EXPECT_EQ(follower.value, 10) << "what no checkpoint has is alike";
      follower.value = world.all_reduce_scalar(1);
    });
    if (old == 2) ranks.die(world);
    world.rebuild(loss_of(world), alike);
    EXPECT_EQ(backs, 1);
    EXPECT_EQ(follower.value, 2);
  });
}

// The first step ends with a meeting of all ranks, to which rank 2 does not come.
TEST(WorldRebuild, R26AStepWhoseEndThrowsIsNotCounted) {
  SurvivingRanks ranks(3);
  std::atomic<int> reduced{0};
  ranks.run([&](World& world) {
    ToyModel model({50}, world.rank().value());
    DistributedDataParallel ddp(world, model.parameters());
    ddp.on_bucket_ready(
        [&](ReducedBucket const& bucket) { host_stream(bucket.stream).enqueue([&] { ++reduced; }); });
    mark_all(ddp);
    if (world.rank() == 2) {
      AutogradSupport(ddp).send_rest();
      while (reduced < 3) std::this_thread::yield();
      ranks.die(world);
    }
    static_cast<void>(error_of<CommError>([&] { ddp.synchronize(); }));
    EXPECT_EQ(ddp.steps(), 0U);
  });
}

// A follower would say that it is whole, once it has followed.
TEST(WorldRebuild, R26WhoHasNotGoneBackWholeHasNothingToGive) {
  SurvivingRanks ranks(4);
  ranks.run([&](World& world) {
    int const old = world.rank().value();
    Follower follower(world, 7);
    follower.whole = false;
    follower.on_follow = [&] { follower.whole = true; };
    Replicated alike(world, {}, [&] {
      if (old == 0) ranks.die(world);
      follower.value = world.size() + world.all_reduce_scalar(1);
    });
    if (old == 3) ranks.die(world);
    world.rebuild(loss_of(world), alike);
    EXPECT_EQ(follower.value, 4) << "two ranks";
    EXPECT_EQ(world.membership(), 2);
  });
}

TEST(WorldRebuild, R26WhereNoRankHasAllAndThereIsNoWayBackTheJobEnds) {
  SurvivingRanks ranks(3);
  ranks.run([&](World& world) {
    Follower follower(world, 7);
    follower.whole = false;
    Replicated alike(world, {});
    if (world.rank() == 2) ranks.die(world);
    Error const error = error_of([&] { world.rebuild(loss_of(world), alike); });
    EXPECT_EQ(error.code(), ErrorCode::invalid_state);
    EXPECT_THAT(error.what(), HasSubstr("give Replicated a function that goes back to a checkpoint"));
  });
}

TEST(WorldRebuild, R26WhatGoingBackThrowsEndsTheJob) {
  SurvivingRanks ranks(2);
  ranks.run([&](World& world) {
    Follower follower(world, 7);
    follower.whole = false;
    Replicated alike(world, {}, [] { throw Error(ErrorCode::io, "there is no checkpoint"); });
    CommError const aborted(ErrorCode::aborted, "given up");
    EXPECT_THAT(error_of([&] { world.rebuild(aborted, alike); }).what(), HasSubstr("there is no checkpoint"));
  });
}

}  // namespace
}  // namespace ddp::testing
