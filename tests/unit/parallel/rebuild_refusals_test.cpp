// What World::rebuild() and Replicated refuse (R26).
#include <gmock/gmock.h>

#include <array>
#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "core/hash.hpp"
#include "core/record.hpp"
#include "ddp/core/text.hpp"
#include "ddp/ddp.hpp"
#include "support/errors.hpp"
#include "support/models/toy_model.hpp"
#include "support/ranks/in_process_worlds.hpp"
#include "support/ranks/surviving_ranks.hpp"

namespace ddp::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(WorldRebuild, R26WhatIsNoLossIsThrownAgain) {
  SurvivingRanks ranks(2);
  ranks.run([&](World& world) {
    Replicated alike(world, {});
    CommError const error(ErrorCode::mismatch, "shapes differ");
    EXPECT_EQ(error_of<CommError>([&] { world.rebuild(error, alike); }).code(), ErrorCode::mismatch);
    EXPECT_EQ(world.all_reduce_scalar(1), 2) << "and nothing was done";
  });
}

TEST(WorldRebuild, R26WhereTheJobEndsWithItsFirstLostRankTheErrorStillNamesThatRank) {
  SurvivingRanks ranks(2, 0);
  ranks.run([&](World& world) {
    Replicated alike(world, {});
    if (world.rank() == 1) ranks.die(world);
    CommError const loss = loss_of(world);
    CommError const error = error_of<CommError>([&] { world.rebuild(loss, alike); });
    EXPECT_EQ(error.code(), ErrorCode::peer_lost);
    EXPECT_THAT(error.failure().ranks, ElementsAre(Rank{1}));
    EXPECT_THAT(error.what(), StartsWith(loss.what()));
    EXPECT_THAT(error.what(), HasSubstr("this job ends with its first lost rank: to go on, start it with"));
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

// Played by hand, since a process has one library.
TEST(WorldRebuild, R26ANewcomerWithAnotherVersionOfTheLibraryIsNamedAndTheOthersGoOn) {
  SurvivingRanks ranks(2);
  std::atomic<bool> refused{false};
  std::thread other([&] {
    ranks.newcomer(1, [&](World& world) {
      ControlPlane& control = world.control();
      auto const deadline = Deadline::after(std::chrono::seconds(60));
      Membership const next = control.rebuild(record(1, 0, StableHash().value()), deadline);
      std::string const group = text("ddp/@", next.number, "/communicator/");
      static_cast<void>(control.gather(group + "location", record("9.9", "elsewhere"), next.ranks, deadline));
      auto const said = control.all_gather(group + "conclusion", "", next.ranks, deadline);
      EXPECT_THAT(said.front(), HasSubstr("rank 1 (on elsewhere) version 9.9; every host needs the same"));
      refused = true;
      ranks.die(world);
    });
  });
  ranks.run([&](World& world) {
    Replicated alike(world, {});
    if (world.rank() == 1) ranks.die(world);
    world.rebuild(loss_of(world), alike);
    rebuild_with_newcomer(world, alike, refused);
    EXPECT_THAT(world.members(), ElementsAre(Rank{0}));
    EXPECT_EQ(world.all_reduce_scalar(1), 1);
  });
  other.join();
}

TEST(WorldRebuild, R26ASecondCallForTheSameErrorDisturbsNobody) {
  SurvivingRanks ranks(3);
  ranks.run([&](World& world) {
    Replicated alike(world, {});
    bool const again = world.rank() == 0;
    if (world.rank() == 2) ranks.die(world);
    CommError const error = loss_of(world);
    world.rebuild(error, alike);
    if (again) world.rebuild(CommError(error), alike);
    EXPECT_EQ(world.all_reduce_scalar(1), 2);
    EXPECT_EQ(world.membership(), 1);
  });
}

// The reducer that calls it would be replaced.
TEST(WorldRebuild, R26AFunctionThatAStepCallsMayNotRebuild) {
  SurvivingRanks ranks(2);
  ranks.run([&](World& world) {
    ToyModel model({50});
    DistributedDataParallel ddp(world, model.parameters(),
                                {.uneven = DistributedDataParallelOptions::Uneven::divide_by_live});
    Replicated alike(world, {});
    int refused = 0;
    auto const tries = [&] {
      Error const error =
          error_of([&] { world.rebuild(CommError(ErrorCode::peer_lost, "rank 2 is gone"), alike); });
      EXPECT_EQ(error.code(), ErrorCode::unsupported);
      EXPECT_THAT(error.what(), HasSubstr("catch it around the step"));
      ++refused;
    };
    ddp.set_comm_hook({"rebuilds", [&](GradientBucket const& bucket) {
                         tries();
                         for (TensorView const& gradients : bucket.gradients) {
                           bucket.communicator.all_reduce(gradients, bucket.op, bucket.stream);
                         }
                       }});
    mark_all(ddp);
    ddp.synchronize();
    EXPECT_EQ(refused, 1);
    if (world.rank() == 0) {
      mark_all(ddp);
      ddp.synchronize();
    }
    ddp.join(tries);
    EXPECT_EQ(refused, world.rank() == 0 ? 2 : 3) << "of another rank's step the hook is called too";
    EXPECT_EQ(world.membership(), 0);
    world.barrier();
  });
}

// A loss like the one before is another error, though it has the same words.
TEST(WorldRebuild, R26EveryErrorThatIsThrownAnewCounts) {
  SurvivingRanks ranks(2);
  ranks.run([&](World& world) {
    Replicated alike(world, {});
    for (int time = 1; time <= 2; ++time) {
      world.rebuild(CommError(ErrorCode::peer_lost, "rank 2 is gone"), alike);
      EXPECT_EQ(world.membership(), time);
    }
  });
}

TEST(WorldRebuild, R26WhoRebuildsAloneIsNamedToTheOthersAndToldHowManyAreLeft) {
  SurvivingRanks ranks(3, 2);
  ranks.run([&](World& world) {
    ToyModel model({50});
    DistributedDataParallel ddp(world, model.parameters());
    Replicated alike(world, {});
    if (world.rank() == 0) {
      CommError const own(ErrorCode::timeout, "this rank lost its patience");
      Error const error = error_of([&] { world.rebuild(own, alike); });
      EXPECT_EQ(error.code(), ErrorCode::invalid_state);
      EXPECT_THAT(error.what(), HasSubstr("1 of 3 ranks is left, and --min-ranks (DDP_MIN_RANKS) is 2"));
      return;
    }
    CommError const error = error_of<CommError>([&] {
      for (;;) {
        mark_all(ddp);
        ddp.synchronize();
      }
    });
    EXPECT_EQ(error.code(), ErrorCode::aborted);
    EXPECT_THAT(error.what(), HasSubstr("rank 0"));
    EXPECT_THAT(error.what(), HasSubstr("lost its patience"));
    ranks.die(world);  // as the error is not caught
  });
}

// The others wait for rank 1 no longer than the timeout.
TEST(WorldRebuild, R26WhoSwallowsTheErrorGetsItAgainUntilTheOthersHaveWaitedLongEnough) {
  SurvivingRanks ranks(4);
  std::atomic<int> went_on{0};
  ranks.run(
      [&](World& world) {
        ToyModel model({50});
        DistributedDataParallel ddp(world, model.parameters());
        Replicated alike(world, {});
        auto const step = [&] {
          mark_all(ddp);
          ddp.synchronize();
        };
        bool const swallows = world.rank() == 1;
        if (world.rank() == 3) ranks.die(world);
        CommError const loss = error_of<CommError>(step);
        if (!swallows) {
          world.rebuild(loss, alike);
          step();
          EXPECT_THAT(world.members(), ElementsAre(Rank{0}, Rank{2}));
          ++went_on;
          return;
        }
        while (went_on < 2) {
          EXPECT_THAT(loss_of(world).what(), HasSubstr("rank 3"));
          EXPECT_THAT(error_of<CommError>(step).what(),
                      HasSubstr("failed before and cannot be used any more: "));
        }
        CommError const late = error_of<CommError>([&] { world.rebuild(loss, alike); });
        EXPECT_THAT(late.what(), HasSubstr("rank 1 did not come to rebuild() by the deadline of the others"));
      },
      std::chrono::milliseconds(300));
}

// Between the parts of a backward pass, where a program reads its loss.
TEST(WorldRebuild, R26InTheMiddleOfAStepWhatIsMarkedIsForgotten) {
  for (bool const in_graph : {false, true}) {
    SurvivingRanks ranks(3);
    ranks.run([&](World& world) {
      int const old = world.rank().value();
      ToyModel model({300, 7}, old);
      DistributedDataParallel ddp(world, model.parameters(), {.bucket_bytes = Bytes{64}});
      int position = 0;
      Replicated alike(world, {&position});
      auto const step = [&] {
        model.clear_gradients();
        model.fill_gradients(world.rank().value());
        ddp.gradient_ready(1);
        if (old == 1 && position == 2) ranks.die(world);
        static_cast<void>(world.all_reduce_scalar(1));
        ddp.gradient_ready(0);
        ddp.synchronize();
        EXPECT_EQ(model.gradients[1][3], ToyModel::average_gradient(1, 3, world.size()));
        ++position;
      };
      auto const step_or_rebuild = [&] {
        try {
          step();
        } catch (CommError const& error) {
          world.rebuild(error, alike);
        }
      };
      StepGraph graph(ddp, step_or_rebuild);
      while (position < 5) in_graph ? static_cast<void>(graph.run()) : step_or_rebuild();
      EXPECT_EQ(world.size(), 2);
      EXPECT_EQ(ddp.steps(), 5U);
      world.barrier();
    });
  }
}

}  // namespace
}  // namespace ddp::testing
