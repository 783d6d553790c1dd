// What World::rebuild() and Replicated refuse (R26).
#include <gmock/gmock.h>

#include <array>
#include <vector>

#include "ddp/ddp.hpp"
#include "support/errors.hpp"
#include "support/models/toy_model.hpp"
#include "support/ranks/surviving_ranks.hpp"

namespace ddp::testing {
namespace {

using ::testing::HasSubstr;

TEST(WorldRebuild, R26WhatIsNoLossIsThrownAgain) {
  SurvivingRanks ranks(2);
  ranks.run([&](World& world) {
    Replicated alike(world, {});
    CommError const error(ErrorCode::mismatch, "shapes differ");
    EXPECT_EQ(error_of<CommError>([&] { world.rebuild(error, alike); }).code(), ErrorCode::mismatch);
    EXPECT_EQ(world.all_reduce_scalar(1), 2) << "and nothing was done";
  });
}

TEST(WorldRebuild, R26ReplicatedStateOfAnotherFormIsRefusedOnEveryRank) {
  SurvivingRanks ranks(3);
  ranks.run([&](World& world) {
    std::array<float, 4> same{};
    std::vector<double> other(world.rank() == 1 ? 3U : 2U);
    CommError const error = error_of<CommError>([&] {
      Replicated alike(world, {view_of(std::span<float>(same)), view_of(std::span<double>(other))});
    });
    EXPECT_EQ(error.code(), ErrorCode::mismatch);
    EXPECT_THAT(error.what(), HasSubstr("tensor 1 of rank 1 is f64[3] on cpu, of rank 0 f64[2] on cpu"));
  });
}

TEST(WorldRebuild, R26WhatCannotFollowIsRefusedBeforeAnythingIsDone) {
  SurvivingRanks ranks(2);
  ranks.run([&](World& world) {
    CommError const loss(ErrorCode::peer_lost, "lost");
    Replicated alike(world, {});
    auto const expect_refused = [&](char const* why) {
      Error const error = error_of([&] { world.rebuild(loss, alike); });
      EXPECT_EQ(error.code(), ErrorCode::unsupported);
      EXPECT_THAT(error.what(), HasSubstr(why));
      world.barrier();
    };
    {
      auto both = world.subgroup(world.members());
      expect_refused("a sub-group of this World cannot follow");
      EXPECT_THAT(error_of([&] { both->rebuild(loss, alike); }).what(),
                  HasSubstr("a sub-group cannot be rebuilt"));
    }
    ToyModel model({50});
    {
      DistributedDataParallel ddp(world, model.parameters());
      {
        auto const guard = ddp.no_sync();
        expect_refused("a guard of no_sync() lives");
      }
      ToyModel second({50});
      DistributedDataParallel const other(world, second.parameters());
      auto const guard = ddp.no_sync();
      expect_refused("a guard of no_sync() lives");  // of one of them
    }
  });
}

TEST(WorldRebuild, R26AlreadyAtTheStartOneIsWarnedOfWhatCannotFollow) {
  SurvivingRanks ranks(2);
  ::testing::internal::CaptureStderr();
  ranks.run([&](World& world) {
    auto const both = world.subgroup(world.members());
    Replicated alike(world, {});
  });
  EXPECT_THAT(
      ::testing::internal::GetCapturedStderr(),
      HasSubstr("this job could not go on without a lost rank: a sub-group of this World cannot follow it"));
}

}  // namespace
}  // namespace ddp::testing
