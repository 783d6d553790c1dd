// World::rebuild() with ranks that are threads (R26).
#include <gmock/gmock.h>

#include <array>
#include <chrono>
#include <limits>
#include <thread>
#include <vector>

#include "ddp/ddp.hpp"
#include "parallel/world/world_state.hpp"
#include "support/errors.hpp"
#include "support/models/toy_model.hpp"
#include "support/ranks/in_process_worlds.hpp"
#include "support/ranks/surviving_ranks.hpp"
#include "support/ranks/world_values.hpp"

namespace ddp::testing {
namespace {

using std::chrono::milliseconds;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(WorldRebuild, R26TheOthersGoOnWithNewNumbersAndTheSameModel) {
  SurvivingRanks ranks(4);
  ranks.run([&](World& world) {
    int const old = world.rank().value();
    ToyModel model({300, 7}, old);
    DistributedDataParallel ddp(world, model.parameters());
    int position = 0;
    Replicated alike(world, {&position});
    DistributedSampler sampler(12, world, {.shuffle = false});
    auto const step = [&] {
      do_step(world, model, ddp);
      EXPECT_EQ(model.gradients[1][3], ToyModel::average_gradient(1, 3, world.size()));
      ++position;
    };
    for (int i = 0; i < 3; ++i) step();
    meet(world);
    if (old == 1) ranks.die(world);
    CommError const error = error_of<CommError>(step);
    world.rebuild(error, alike);
    EXPECT_EQ(world.membership(), 1);
    EXPECT_EQ(world.size(), 3);
    EXPECT_EQ(world.rank(), old == 0 ? 0 : old - 1);
    EXPECT_THAT(world.members(), ElementsAre(Rank{0}, Rank{2}, Rank{3}));
    EXPECT_EQ(ddp.steps(), 3U);
    EXPECT_EQ(position, 3);
    for (float const* gradient : model.gradients) EXPECT_EQ(gradient[0], 0.0F) << "of the broken step";
    for (int i = 0; i < 3; ++i) step();
    EXPECT_EQ(ddp.steps(), 6U);
    sampler.resume_at(6);
    EXPECT_THAT(sampler.batches(2).front().indices,
                ElementsAre(6 + 2 * world.rank().index(), 7 + 2 * world.rank().index()));
    world.barrier();
  });
}

// An optimizer was given it once.
TEST(WorldRebuild, R26WhereAnOptimizerLooksForNanStaysWhereItIs) {
  SurvivingRanks ranks(2);
  ranks.run([&](World& world) {
    ToyModel model({300}, 0);
    DistributedDataParallel ddp(world, model.parameters(),
                                {.nonfinite = DistributedDataParallelOptions::Nonfinite::flag});
    EXPECT_EQ(ddp.uncommitted().data, nullptr) << "of a CPU no update can meet a broken step";
    TensorView const before = ddp.found_nonfinite();
    Replicated alike(world, {});
    if (world.rank() == 1) {
      ranks.die(world);
    }
    world.rebuild(loss_of(world), alike);
    EXPECT_EQ(ddp.found_nonfinite().data, before.data);
    model.gradients[0][7] = std::numeric_limits<float>::infinity();
    mark_all(ddp);
    ddp.synchronize();
    EXPECT_EQ(before.as<float>()[0], 1.0F);
  });
}

TEST(WorldRebuild, R26WhoIsAheadGivesItsValuesToTheOthers) {
  SurvivingRanks ranks(3);
  ranks.run([&](World& world) {
    int const old = world.rank().value();
    Follower follower(world, old == 2 ? 8 : 7);
    follower.value = 10 + old;
    struct {
      int epoch;
      double sum;
    } position{old, 0.5 * old};
    std::array<float, 3> momentum;
    momentum.fill(static_cast<float>(old));
    Replicated alike(
        world, {std::vector<NamedTensor>{{"momentum", view_of(std::span<float>(momentum)), {}}}, &position});
    if (old == 0) ranks.die(world);
    world.rebuild(loss_of(world), alike);
    EXPECT_EQ(follower.value, 12);
    EXPECT_EQ(follower.steps_done, 8U);
    EXPECT_EQ(position.epoch, 2);
    EXPECT_EQ(position.sum, 1.0);
    EXPECT_THAT(momentum, Each(2.0F));
    EXPECT_GE(follower.aborts, 1);
    EXPECT_EQ(follower.follows, 1);
  });
}

// Rank 2 is ahead, and dies before the others have its values: these must have kept their own.
TEST(WorldRebuild, R26WhoDiesWhileItGivesItsValuesChangesNoOthers) {
  SurvivingRanks ranks(4);
  ranks.run([&](World& world) {
    int const old = world.rank().value();
    Follower follower(world, old == 2 ? 8 : 7);
    follower.value = old == 2 ? 99 : 7;
    follower.on_values = [&] {
      if (old == 2) ranks.die(world);
    };
    Replicated alike(world, {});
    if (old == 3) ranks.die(world);
    world.rebuild(loss_of(world), alike);
    EXPECT_EQ(follower.value, 7);
    EXPECT_EQ(follower.steps_done, 7U);
    EXPECT_EQ(world.membership(), 2);
    EXPECT_THAT(world.members(), ElementsAre(Rank{0}, Rank{1}));
  });
}

TEST(WorldRebuild, R26AHostThatIsAheadOfItsGpuGoesBackOnce) {
  SurvivingRanks ranks(3);
  ranks.run([&](World& world) {
    int const old = world.rank().value();
    Follower follower(world, 7);
    follower.is_ahead = old != 1;
    int position = 7;
    std::array<float, 3> momentum{1, 2, 3};
    Replicated alike(
        world, {std::vector<NamedTensor>{{"momentum", view_of(std::span<float>(momentum)), {}}}, &position});
    WorldAccess::state(world).each_host_values(&HostValues::keep);
    if (follower.is_ahead) {
      momentum.fill(9);
      ++position;
    }
    if (old == 2) ranks.die(world);
    world.rebuild(loss_of(world), alike);
    EXPECT_EQ(position, 7);
    EXPECT_THAT(momentum, ElementsAre(1, 2, 3));
    if (!follower.is_ahead) return;
    position = 20;
    WorldAccess::state(world).each_host_values(&HostValues::take_back);
    EXPECT_EQ(position, 20) << "a loss while it goes on must not bring the values back again";
  });
}

// Work of one model may wait for a communicator of another.
TEST(WorldRebuild, R26AllAreAbortedBeforeOneIsWaitedFor) {
  SurvivingRanks ranks(2);
  ranks.run([&](World& world) {
    std::array<Follower, 2> followers{Follower(world, 7), Follower(world, 7)};
    for (Follower& each : followers) {
      each.on_drain = [&] { EXPECT_THAT(followers, Each(::testing::Field(&Follower::aborts, 1))); };
    }
    Replicated alike(world, {});
    if (world.rank() == 1) {
      ranks.die(world);
    }
    world.rebuild(loss_of(world), alike);
    EXPECT_THAT(followers, Each(::testing::Field(&Follower::follows, 1)));
  });
}

TEST(WorldRebuild, R26WhoDiesAfterTheOthersHaveMetIsLeftOutToo) {
  SurvivingRanks ranks(4);
  ranks.run([&](World& world) {
    int const old = world.rank().value();
    Follower follower(world, 7);
    follower.on_follow = [&] {
      if (old == 0) ranks.die(world);
    };
    Replicated alike(world, {});
    if (old == 3) ranks.die(world);
    world.rebuild(loss_of(world), alike);
    EXPECT_THAT(world.members(), ElementsAre(Rank{1}, Rank{2}));
    EXPECT_EQ(world.all_reduce_scalar(1), 2);
  });
}

// Memory of a process that has ended cannot be opened, which is noticed before the loss is known.
TEST(WorldRebuild, R26AnErrorThatFollowsFromALossIsOne) {
  SurvivingRanks ranks(4);
  ranks.run([&](World& world) {
    int const old = world.rank().value();
    Follower follower(world, 7);
    follower.on_follow = [&] {
      if (old == 0) {
        std::this_thread::sleep_for(milliseconds(50));
        ranks.die(world);
      }
      if (world.membership() == 1) throw Error(ErrorCode::io, "opening shared memory of process 4711");
    };
    Replicated alike(world, {});
    if (old == 3) ranks.die(world);
    world.rebuild(loss_of(world), alike);
    EXPECT_THAT(world.members(), ElementsAre(Rank{1}, Rank{2}));
  });
  SurvivingRanks others(2);
  others.run([&](World& world) {
    Follower follower(world, 7);
    follower.on_follow = [] { throw Error(ErrorCode::io, "a disk is full"); };
    Replicated alike(world, {});
    CommError const aborted(ErrorCode::aborted, "given up");
    EXPECT_THAT(error_of([&] { world.rebuild(aborted, alike); }).what(), HasSubstr("a disk is full"))
        << "nobody is lost";
  });
}

TEST(WorldRebuild, R26ManyTimesUntilOneIsLeft) {
  SurvivingRanks ranks(6);
  ranks.run([&](World& world) {
    int const old = world.rank().value();
    ToyModel model({50}, old);
    DistributedDataParallel ddp(world, model.parameters());
    Replicated alike(world, {});
    for (int victim = 0; victim < 5; ++victim) {
      mark_all(ddp);
      ddp.synchronize();
      meet(world);
      if (old == victim) ranks.die(world);
      world.rebuild(loss_of(world), alike);
      EXPECT_EQ(world.size(), 5 - victim);
    }
    EXPECT_EQ(world.communicator().backend(), "solo");
    EXPECT_EQ(ddp.steps(), 5U);
  });
}

TEST(WorldRebuild, R26NobodyNeedBeLost) {
  SurvivingRanks ranks(3);
  ranks.run(
      [&](World& world) {
        Replicated alike(world, {});
        // Rank 0 is late for the others, and comes all the same.
        if (world.rank() == 0) std::this_thread::sleep_for(milliseconds(1300));
        world.rebuild(loss_of(world), alike);
        EXPECT_EQ(world.size(), 3);
      },
      milliseconds(1000));
}

// Two models are trained in turn, as a GAN's. Rank 1 has done a step of the second one more than the others,
// rank 2 breaks off in the first one's. All that rank 1 has is given: a state that one rank really had.
}  // namespace
}  // namespace ddp::testing
