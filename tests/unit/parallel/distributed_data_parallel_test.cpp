// How steps of DistributedDataParallel go, beside the oracle, with ranks that are threads.
#include "ddp/parallel/distributed_data_parallel.hpp"

#include <gmock/gmock.h>

#include <array>
#include <atomic>
#include <cmath>
#include <memory>
#include <optional>
#include <thread>

#include "ddp/core/text.hpp"
#include "parallel/ddp/reducer_access.hpp"
#include "reducer/parts/step_head.hpp"
#include "support/models/toy_model.hpp"
#include "support/ranks/in_process_worlds.hpp"

namespace ddp::testing {
namespace {

using ::testing::HasSubstr;

TEST(DistributedDataParallel, R2TheFirstStepsOrderRebuildsTheBucketsOnceAndKeepsTheValues) {
  on_ranks(3, [](World const& world) {
    ToyModel model({8, 8, 8, 8});
    DistributedDataParallelOptions options;
    options.bucket_bytes = options.first_bucket_bytes = 64_B;  // two parameters a bucket
    DistributedDataParallel ddp(world, model.parameters(), options);
    for (int step = 0; step < 3; ++step) {
      model.clear_gradients();
      model.fill_gradients(world.rank().value());
      // Ranks arrive in different orders; rank 0's counts.
      std::vector<std::size_t> order{2, 0, 3, 1};
      if (world.rank() != 0) order = {0, 1, 2, 3};
      for (std::size_t const p : order) ddp.gradient_ready(p);
      ddp.synchronize();
      for (std::size_t p = 0; p < 4; ++p) {
        for (std::size_t i = 0; i < 8; ++i)
          ASSERT_EQ(model.gradients[p][i], ToyModel::average_gradient(p, i, 3));
      }
      EXPECT_EQ(reducer_of(ddp).rebuilds(), 1);
    }
    EXPECT_EQ(model.binds, (std::vector<int>{2, 2, 2, 2})) << "once at construction, once at the rebuild";
    EXPECT_EQ(ddp.plan().buckets()[0].slices[0].parameter, 2U);
    EXPECT_EQ(ddp.plan().buckets()[0].slices[1].parameter, 0U);
  });
}

TEST(DistributedDataParallel, R2AnOrderAsExpectedRebuildsNothing) {
  on_ranks(2, [](World const& world) {
    ToyModel model({8, 8});
    DistributedDataParallel ddp(world, model.parameters());
    mark_all(ddp);
    ddp.synchronize();
    EXPECT_EQ(reducer_of(ddp).rebuilds(), 0);
    EXPECT_EQ(model.binds, (std::vector<int>{1, 1}));
  });
}

TEST(DistributedDataParallel, R4WeightsGiveTheExactWeightedMeanAlsoWithAWeightOfZero) {
  on_ranks(3, [](World const& world) {
    ToyModel model({5});
    DistributedDataParallel ddp(world, model.parameters());
    int const me = world.rank().value();
    for (int step = 0; step < 4; ++step) {
      model.clear_gradients();
      model.fill_gradients(me);
      bool const weighted = step % 2 == 0;
      if (weighted) ddp.set_weight(me * 10.0);  // 0, 10, 20
      mark_all(ddp);
      ddp.synchronize();
      float const expected =
          weighted ? (10.0F * ToyModel::gradient(0, 4, 1) + 20.0F * ToyModel::gradient(0, 4, 2)) / 30
                   : ToyModel::average_gradient(0, 4, 3);
      EXPECT_FLOAT_EQ(model.gradients[0][4], expected) << "step " << step << ": a weight holds for one step";
    }
    model.fill_gradients(me);
    ddp.set_weight(0);
    mark_all(ddp);
    ddp.synchronize();
    EXPECT_EQ(model.gradients[0][4], 0.0F) << "no rank had samples";
  });
}

TEST(DistributedDataParallel, R4TheLargestAndTheSmallestWeightsGiveTheWeightedMeanToo) {
  on_ranks(2, [](World const& world) {
    ToyModel model({5});
    DistributedDataParallel ddp(world, model.parameters());
    int const me = world.rank().value();
    for (double const weight : {4e307, 1e200, 1e-300, 5e-324}) {
      model.clear_gradients();
      model.fill_gradients(me);
      ddp.set_weight(weight);
      mark_all(ddp);
      ddp.synchronize();
      EXPECT_EQ(model.gradients[0][4], ToyModel::average_gradient(0, 4, 2)) << weight;
    }
  });
}

TEST(DistributedDataParallel, R4WrongWeightsAreErrors) {
  on_ranks(2, [](World const& world) {
    ToyModel model({5});
    DistributedDataParallel ddp(world, model.parameters());
    EXPECT_THAT(message_of([&] { ddp.set_weight(-1); }), HasSubstr("-1"));
    EXPECT_THAT(message_of([&] { ddp.set_weight(std::nan("")); }), HasSubstr("nan"));
    EXPECT_THAT(message_of([&] { ddp.set_weight(1e308); }),
                HasSubstr("so that those of 2 ranks can be added"));
    if (world.rank() == 1) ddp.set_weight(2);
    EXPECT_THAT(message_of([&] {
                  mark_all(ddp);
                  ddp.synchronize();
                }),
                HasSubstr("set_weight() was called on rank 1 and not on rank 0 in step 0; call it on all"));
  });
}

TEST(DistributedDataParallel, R6NothingIsSentUnderNoSyncAndGuardsNest) {
  on_ranks(2, [](World const& world) {
    ToyModel model({5, 6});
    DistributedDataParallel ddp(world, model.parameters());
    for (int step = 0; step < 2; ++step) {
      {
        NoSyncGuard const outer = ddp.no_sync();
        {
          NoSyncGuard const inner = ddp.no_sync();
          model.fill_gradients(world.rank().value());
          mark_all(ddp);
        }
        mark_all(ddp);  // still under the outer guard
        ddp.synchronize();
        EXPECT_EQ(model.gradients[1][5], ToyModel::gradient(1, 5, world.rank().value()))
            << "sent under no_sync";
        EXPECT_EQ(ddp.steps(), static_cast<std::uint64_t>(step));
      }
      model.fill_gradients(world.rank().value());  // adds
      mark_all(ddp);
      ddp.synchronize();
      EXPECT_EQ(model.gradients[1][5], 2 * ToyModel::average_gradient(1, 5, 2));
      ddp.zero_gradients();
      EXPECT_EQ(model.gradients[1][5], 0.0F);
    }
  });
}

TEST(DistributedDataParallel, R6ALoopDecidesAtRunTimeWhichMicroStepSends) {
  on_ranks(2, [](World const& world) {
    ToyModel model({5, 6});
    DistributedDataParallel ddp(world, model.parameters());
    std::uint64_t steps = 0;
    for (int const micro_steps : {1, 3, 2}) {
      for (int micro = 1; micro <= micro_steps; ++micro) {
        NoSyncGuard const guard = ddp.no_sync(micro < micro_steps);
        model.fill_gradients(world.rank().value());  // adds
        mark_all(ddp);
        ddp.synchronize();
        EXPECT_EQ(ddp.steps(), micro < micro_steps ? steps : steps + 1);
      }
      ++steps;
      EXPECT_EQ(model.gradients[1][5], static_cast<float>(micro_steps) * ToyModel::average_gradient(1, 5, 2));
      ddp.zero_gradients();
    }
  });
}

TEST(DistributedDataParallel, R6AGuardThatIsAssignedToLetsGoOfWhatItGuarded) {
  on_ranks(1, [](World const& world) {
    ToyModel model({5});
    DistributedDataParallel ddp(world, model.parameters());
    auto const step_sends = [&] {
      auto const before = ddp.steps();
      mark_all(ddp);
      ddp.synchronize();
      return ddp.steps() != before;
    };
    NoSyncGuard guard;
    EXPECT_TRUE(step_sends());
    guard = ddp.no_sync();
    guard = ddp.no_sync();
    EXPECT_FALSE(step_sends());
    guard = ddp.no_sync(false);
    EXPECT_TRUE(step_sends());
    std::optional<NoSyncGuard> perhaps;
    perhaps.emplace(ddp.no_sync());
    EXPECT_FALSE(step_sends());
    perhaps.reset();
    EXPECT_TRUE(step_sends());
  });
}

TEST(DistributedDataParallel, R6AGuardInTheMiddleOfAStepIsAnError) {
  on_ranks(1, [](World const& world) {
    ToyModel model({5, 6});
    DistributedDataParallel ddp(world, model.parameters());
    ddp.gradient_ready(1);
    EXPECT_THAT(message_of([&] { static_cast<void>(ddp.no_sync()); }),
                HasSubstr("middle of a synchronised step"));
    EXPECT_THAT(message_of([&] { ddp.zero_gradients(); }), HasSubstr("middle of a synchronised step"));
    EXPECT_THAT(message_of([&] { ddp.set_weight(1); }), HasSubstr("before the backward pass"));
    ddp.gradient_ready(0);
    ddp.synchronize();
  });
}

TEST(DistributedDataParallel, ARankThatSkipsAStepIsNamedWithinTheTimeout) {
  auto worlds = World::in_process(2, {.timeout = std::chrono::milliseconds(300)});
  run_ranks(2, [&](int rank) {
    ToyModel model({5});
    DistributedDataParallel ddp(worlds[static_cast<std::size_t>(rank)], model.parameters());
    if (rank == 1) {
      NoSyncGuard const guard = ddp.no_sync();
      mark_all(ddp);
      ddp.synchronize();
      std::this_thread::sleep_for(std::chrono::milliseconds(600));
    } else {
      mark_all(ddp);
      EXPECT_THAT(message_of([&] { ddp.synchronize(); }), HasSubstr("for rank 1"));
    }
  });
}

class StepHead : public ::testing::TestWithParam<double> {};

TEST_P(StepHead, R12RanksInDifferentStepsAreAnErrorOnEveryRank) {
  auto const communicators = make_in_process_communicators(2);
  run_ranks(2, [&](int rank) {
    HostStream stream;
    auto const compute = HostStream::inline_stream();
    auto const head = ddp::StepHead::make(
        {Device{}, &backend_of(*communicators[static_cast<std::size_t>(rank)]), compute.get(), &stream});
    // With a weight the head says it, and without one the first collective that follows.
    double const weight = GetParam();
    auto const begin = [&](std::uint64_t step) {
      head->begin(step, weight, {});
      communicators[static_cast<std::size_t>(rank)]->barrier(stream);
    };
    begin(7);
    stream.synchronize();
    begin(rank == 0 ? 8 : 9);
    EXPECT_THAT(message_of([&] { stream.synchronize(); }),
                HasSubstr("ranks are in different steps: rank 0 is in synchronised step 8, rank 1 in 9"));
  });
}
INSTANTIATE_TEST_SUITE_P(Weights, StepHead, ::testing::Values(-1.0, 2.0));

TEST(DistributedDataParallel, R8AMarkTooManyNamesTheParameterAndThePeersLearnOfIt) {
  on_ranks(2, [](World const& world) {
    ToyModel model({5, 6});
    DistributedDataParallel ddp(world, model.parameters());
    if (world.rank() == 0) {
      ddp.gradient_ready(1);
      EXPECT_THAT(message_of([&] { ddp.gradient_ready(1); }),
                  HasSubstr("parameter 1 \"p1\" was marked ready twice"));
      EXPECT_THAT(message_of([&] { ddp.gradient_ready(0); }), HasSubstr("cannot be used any more"));
    } else {
      EXPECT_THAT(message_of([&] {
                    mark_all(ddp);
                    ddp.synchronize();
                  }),
                  HasSubstr("marked ready twice"));
    }
  });
}

TEST(DistributedDataParallel, R8AParameterUnusedInTheFirstReentrantStepIsLearntLater) {
  on_ranks(2, [](World const& world) {
    ToyModel model({5, 6});
    DistributedDataParallelOptions options;
    options.allow_repeated_ready = true;
    DistributedDataParallel ddp(world, model.parameters(), options);
    for (int step = 0; step < 4; ++step) {
      model.clear_gradients();
      model.fill_gradients(world.rank().value());
      ddp.gradient_ready(0);
      if (step >= 1) {
        ddp.gradient_ready(1);
        ddp.gradient_ready(1);
      }
      ddp.synchronize();
      EXPECT_EQ(ddp.has_gradient(1), step >= 1);
      EXPECT_EQ(model.gradients[1][5], step >= 1 ? ToyModel::average_gradient(1, 5, 2) : 0.0F);
    }
  });
}

TEST(DistributedDataParallel, R4AWeightUnderNoSyncIsRefused) {
  on_ranks(1, [](World const& world) {
    ToyModel model({5});
    DistributedDataParallel ddp(world, model.parameters());
    NoSyncGuard const guard = ddp.no_sync();
    EXPECT_THAT(message_of([&] { ddp.set_weight(1); }), HasSubstr("outside the guard"));
  });
}

TEST(DistributedDataParallel, R8ReentrantLearnsTheCountsAndChecksThem) {
  on_ranks(2, [](World const& world) {
    ToyModel model({5, 6});
    DistributedDataParallelOptions options;
    options.allow_repeated_ready = true;
    DistributedDataParallel ddp(world, model.parameters(), options);
    for (int step = 0; step < 3; ++step) {
      model.fill_gradients(world.rank().value());
      ddp.gradient_ready(1);
      ddp.gradient_ready(0);
      ddp.gradient_ready(1);
      ddp.synchronize();
      EXPECT_EQ(model.gradients[1][5], ToyModel::average_gradient(1, 5, 2));
      model.clear_gradients();
    }
    ddp.gradient_ready(1);
    ddp.gradient_ready(0);
    EXPECT_THAT(
        message_of([&] { ddp.synchronize(); }),
        HasSubstr("parameter 1 \"p1\" was marked ready 1 times in synchronised step 3, the first step marked "
                  "it 2 times"));
  });
}

TEST(Reducer, R5BucketsTravelWhileTheBackwardPassStillRuns) {
  on_ranks(2, [](World const& world) {
    ToyModel model({8, 8});
    HostStream comm_stream;
    DistributedDataParallelOptions options;
    options.bucket_bytes = options.first_bucket_bytes = 16_B;
    ReducerLane const lane{world.device(), &backend_of(world.communicator()), &world.stream(), &comm_stream};
    Reducer reducer(
        ReducerRanks("test", world.shared_control(), world.control().everyone(), std::chrono::seconds(60)),
        {lane}, model.parameters(), options);
    model.fill_gradients(world.rank().value());
    reducer.gradient_ready(1);
    // Behind the first buckets on their stream: "backward" goes on, and nobody waits for it.
    std::atomic<bool> reduced{false};
    comm_stream.enqueue([&reduced] { reduced = true; });
    auto const end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!reduced && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    ASSERT_TRUE(reduced);
    EXPECT_EQ(model.gradients[1][7], ToyModel::average_gradient(1, 7, 2));
    EXPECT_EQ(model.gradients[0][7], ToyModel::gradient(0, 7, world.rank().value())) << "sent too early";
    reducer.gradient_ready(0);
    reducer.synchronize();
    EXPECT_EQ(model.gradients[0][7], ToyModel::average_gradient(0, 7, 2));
  });
}

TEST(DistributedDataParallel, DestructionInTheMiddleOfAStepEndsItForAll) {
  on_ranks(2, [](World const& world) {
    ToyModel model({5, 6});
    DistributedDataParallelOptions options;
    options.bucket_bytes = options.first_bucket_bytes = 16_B;
    auto ddp = std::make_unique<DistributedDataParallel>(world, model.parameters(), options);
    ddp->gradient_ready(1);
    if (world.rank() == 0) {
      ddp.reset();
    } else {
      EXPECT_THAT(message_of([&] {
                    ddp->gradient_ready(0);
                    ddp->synchronize();
                  }),
                  HasSubstr("rank 0 destroyed ddp/0 in the middle of synchronised step 0"));
    }
  });
}

TEST(DistributedDataParallel, SumIsASum) {
  on_ranks(3, [](World const& world) {
    ToyModel model({5});
    DistributedDataParallelOptions options;
    options.reduction = DistributedDataParallelOptions::Reduction::sum;
    DistributedDataParallel ddp(world, model.parameters(), options);
    model.fill_gradients(world.rank().value());
    mark_all(ddp);
    ddp.synchronize();
    EXPECT_EQ(model.gradients[0][2], 3 * ToyModel::average_gradient(0, 2, 3));
  });
}

}  // namespace
}  // namespace ddp::testing
