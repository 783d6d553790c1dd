// What a program has given a DistributedDataParallel, after World::rebuild() (R26).
#include <gmock/gmock.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "ddp/core/text.hpp"
#include "ddp/ddp.hpp"
#include "support/errors.hpp"
#include "support/models/toy_model.hpp"
#include "support/ranks/in_process_worlds.hpp"
#include "support/ranks/surviving_ranks.hpp"

namespace ddp::testing {
namespace {

using ::testing::HasSubstr;

constexpr std::array<std::size_t, 3> kCounts{300, 7, 40};

DistributedDataParallelOptions several_buckets() {
  return {.bucket_bytes = 200_B, .first_bucket_bytes = 100_B};
}

/// Subtracts each step's gradients from the values.
struct Descent {
  explicit Descent(World& in, DistributedDataParallelOptions const& options = several_buckets())
      : world(in), model({kCounts.begin(), kCounts.end()}), ddp(in, model.parameters(), options) {}
  void fill() {
    model.clear_gradients();
    model.fill_gradients(world.rank().value());
  }
  void update(std::size_t parameter, std::size_t begin, std::size_t count) {
    for (std::size_t i = begin; i < begin + count; ++i) {
      model.values[parameter][i] -= model.gradients[parameter][i];
    }
  }
  void update_all() {
    for (std::size_t p = 0; p < kCounts.size(); ++p) update(p, 0, kCounts[p]);
    ++position;
  }
  /// By steps, which ranks had data in each.
  void expect_descended(std::vector<int> const& ranks) const {
    for (std::size_t p = 0; p < kCounts.size(); ++p) {
      for (std::size_t i = 0; i < kCounts[p]; ++i) {
        float value = ToyModel::initial(0, i);
        for (int const each : ranks) value -= ToyModel::average_gradient(p, i, each);
        ASSERT_EQ(model.values[p][i], value) << "parameter " << p << ", element " << i;
      }
    }
  }

  World& world;
  ToyModel model;
  DistributedDataParallel ddp;
  int position = 0;
};

TEST(WorldRebuild, R26ACommHookReducesTheBucketsOfTheRanksThatAreLeft) {
  SurvivingRanks ranks(3);
  ranks.run([&](World& world) {
    int const old = world.rank().value();
    Descent descent(world);
    int calls = 0;
    descent.ddp.set_comm_hook({"counts", [&](GradientBucket const& bucket) {
                                 ++calls;
                                 for (TensorView const& each : bucket.gradients)
                                   bucket.communicator.all_reduce(each, bucket.op, bucket.stream);
                               }});
    Replicated alike(world, {&descent.position});
    int calls_before = 0;
    while (descent.position < 5) {
      try {
        if (old == 1 && descent.position == 2) ranks.die(world);
        descent.fill();
        mark_all(descent.ddp);
        descent.ddp.synchronize();
        descent.update_all();
      } catch (CommError const& error) {
        world.rebuild(error, alike);
        calls_before = calls;
      }
    }
    EXPECT_GE(calls, calls_before + 9) << "three buckets or more in each of three steps";
    descent.expect_descended({3, 3, 2, 2, 2});
    world.barrier();
  });
}

TEST(WorldRebuild, R26ANewcomerWithAnotherCommHookIsRefused) {
  SurvivingRanks ranks(2);
  std::atomic<bool> refused{false};
  auto const hook = [](char const* name) { return CommHook{name, [](GradientBucket const&) {}}; };
  std::thread other([&] {
    ranks.newcomer(1, [&](World& world) {
      Descent descent(world);
      descent.ddp.set_comm_hook(hook("topk"));
      CommError const error = error_of<CommError>([&] { Replicated alike(world, {}); });
      EXPECT_THAT(error.what(), HasSubstr("has comm hook topk where rank 0 has comm hook none"));
      refused = true;
      ranks.die(world);
    });
  });
  ranks.run([&](World& world) {
    Descent descent(world);
    descent.ddp.set_comm_hook(hook("none"));
    Replicated alike(world, {});
    if (world.rank() == 1) ranks.die(world);
    world.rebuild(loss_of(world), alike);
    rebuild_with_newcomer(world, alike, refused);
    EXPECT_EQ(world.size(), 1);
  });
  other.join();
}

/// Updates each bucket when it is there; `updated` counts that of the first one.
void update_in_backward(Descent& descent, std::atomic<int>& updated) {
  descent.ddp.on_bucket_ready([&](ReducedBucket const& bucket) {
    HostStream& stream = host_stream(bucket.stream);
    for (BucketSlice const& piece : bucket.slices) {
      stream.enqueue(
          [&descent, piece] { descent.update(piece.parameter, piece.parameter_offset, piece.count); });
    }
    if (bucket.index == 0) stream.enqueue([&updated] { ++updated; });
  });
}

TEST(WorldRebuild, R26UpdatesInTheBackwardPassGoOnWhereTheBrokenStepHasNone) {
  SurvivingRanks ranks(3);
  std::atomic<int> updated{0};
  ranks.run([&](World& world) {
    int const old = world.rank().value();
    Descent descent(world);
    update_in_backward(descent, updated);
    Replicated alike(world, {&descent.position});
    while (descent.position < 5) {
      try {
        if (old == 1 && descent.position == 2) ranks.die(world);
        descent.fill();
        mark_all(descent.ddp);
        descent.ddp.synchronize();
        ++descent.position;
      } catch (CommError const& error) {
        world.rebuild(error, alike);
      }
    }
    descent.expect_descended({3, 3, 2, 2, 2});
    world.barrier();
  });
}

// Rank 1 dies when all ranks have updated the first bucket of step 2.
TEST(WorldRebuild, R26WhereAllHaveUpdatedPartsOfTheModelTheyGoBack) {
  for (bool const can_go_back : {true, false}) {
    SurvivingRanks ranks(3);
    std::atomic<int> updated{0};
    ranks.run([&](World& world) {
      int const old = world.rank().value();
      Descent descent(world);
      update_in_backward(descent, updated);
      auto const saved = descent.model.values;  // as a checkpoint at step 0
      std::function<void()> go_back;
      if (can_go_back) {
        go_back = [&] {
          descent.model.values = saved;
          descent.position = 0;
        };
      }
      Replicated alike(world, {&descent.position}, go_back);
      int backs = 0;
      while (descent.position < 4) {
        try {
          descent.fill();
          if (old == 1 && descent.position == 2) {
            descent.ddp.gradient_ready(kCounts.size() - 1);
            while (updated < 9) std::this_thread::yield();
            ranks.die(world);
          }
          mark_all(descent.ddp);
          descent.ddp.synchronize();
          ++descent.position;
        } catch (CommError const& error) {
          if (!can_go_back) {
            Error const why = error_of([&] { world.rebuild(error, alike); });
            EXPECT_THAT(why.what(), HasSubstr("no rank that is left has the values of a whole number of "));
            return;
          }
          world.rebuild(error, alike);
          ++backs;
          EXPECT_EQ(descent.position, 0);
        }
      }
      EXPECT_EQ(backs, 1);
      descent.expect_descended({2, 2, 2, 2});
      world.barrier();
    });
  }
}

// By their numbers ranks have 8, 6 and 4 batches. Rank 1 dies in step 5, when rank 2 has none left. It is
// rank 1 then, and has batches again.
TEST(WorldRebuild, R26RanksWithoutDataGoOnWithTheOthers) {
  SurvivingRanks ranks(3);
  ranks.run([&](World& world) {
    int const old = world.rank().value();
    DistributedDataParallelOptions options = several_buckets();
    options.uneven = DistributedDataParallelOptions::Uneven::divide_by_live;
    Descent descent(world, options);
    Replicated alike(world, {&descent.position});
    for (bool goes_on = true; goes_on;) {
      try {
        while (descent.position < 8 - 2 * world.rank().value()) {
          if (old == 1 && descent.position == 5) ranks.die(world);
          descent.fill();
          mark_all(descent.ddp);
          descent.ddp.synchronize();
          descent.update_all();
        }
        descent.ddp.join([&] { descent.update_all(); });
        goes_on = false;
      } catch (CommError const& error) {
        world.rebuild(error, alike);
        EXPECT_EQ(descent.position, 5);
      }
    }
    EXPECT_EQ(descent.position, 8);
    EXPECT_EQ(descent.ddp.steps(), 8U);
    descent.expect_descended({3, 3, 3, 3, 2, 2, 1, 1});
    world.barrier();
  });
}

}  // namespace
}  // namespace ddp::testing
