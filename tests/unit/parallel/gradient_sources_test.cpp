// Gradients that the program passes in memory of its own, as autograd libraries make them.
#include <gmock/gmock.h>

#include <atomic>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "ddp/parallel/distributed_data_parallel.hpp"
#include "parallel/ddp/reducer_access.hpp"
#include "support/models/fresh_gradient.hpp"
#include "support/ranks/in_process_worlds.hpp"

namespace ddp::testing {
namespace {

using ::testing::HasSubstr;

// A Reducer whose communication stream a test can wait for.
struct OpenReducer {
  OpenReducer(World const& world, ToyModel& model, DistributedDataParallelOptions const& options)
      : reducer(ReducerRanks("open", world.shared_control(), world.control().everyone(),
                             std::chrono::seconds(60)),
                {{world.device(), &backend_of(world.communicator()), &world.stream(), &comm_stream}},
                model.parameters(), options) {}
  HostStream comm_stream;
  Reducer reducer;
};

TEST(GradientSources, R2R3R22AreCopiedIntoBucketsOfAnySizeBesideGradientsThatLieThere) {
  for (Bytes const bytes : {16_B, 64_B, 25_MiB}) {  // of 16 B: parameters are split
    on_ranks(3, [&](World const& world) {
      std::atomic<int> alive{0};
      std::vector<std::size_t> const counts{8, 12, 0, 4, 40};
      ToyModel model(counts);
      DistributedDataParallel ddp(world, model.parameters(), buckets_of(bytes));
      int const me = world.rank().value();
      for (int step = 0; step < 4; ++step) {  // in an order that rebuilds the buckets after the first
        for (std::size_t p = 0; p < counts.size(); ++p) {
          if ((p + static_cast<std::size_t>(step)) % 3 != 0) {  // what lies there is the last average
            ddp.gradient_ready(p, fresh(p, counts[p], me, alive));
          } else {
            for (std::size_t i = 0; i < counts[p]; ++i) model.gradients[p][i] = ToyModel::gradient(p, i, me);
            ddp.gradient_ready(p);
          }
        }
        ddp.synchronize();
        EXPECT_EQ(alive.load(), 0);
        expect_averages(model, 3);
      }
      EXPECT_EQ(reducer_of(ddp).rebuilds(), 1);
    });
  }
}

TEST(GradientSources, R3AreNeitherKeptNorCopiedWhereTheyAreTheBoundMemory) {
  on_ranks(2, [](World const& world) {
    ToyModel model({5, 0});
    DistributedDataParallel ddp(world, model.parameters());
    for (int step = 0; step < 2; ++step) {
      model.clear_gradients();
      model.fill_gradients(world.rank().value());
      auto const owner = std::make_shared<int>();
      ddp.gradient_ready(0, Tensor(reducer_of(ddp).gradient(0), owner));
      ddp.gradient_ready(1, Tensor(model.parameters()[1].value, owner));
      EXPECT_EQ(owner.use_count(), 1);
      ddp.synchronize();
      expect_averages(model, 2);
    }
  });
}

TEST(GradientSources, R5AreLetGoOfWhenTheirLastBucketIsCopied) {
  on_ranks(1, [](World const& world) {
    std::atomic<int> alive{0};
    ToyModel model({4, 12, 4});
    OpenReducer open(world, model, buckets_of(16_B));  // the middle one lies in three
    open.reducer.gradient_ready(2, fresh(2, 4, 0, alive));
    open.reducer.gradient_ready(1, fresh(1, 12, 0, alive));
    EXPECT_GE(alive.load(), 1);
    open.comm_stream.synchronize();
    open.reducer.gradient_ready(0, fresh(0, 4, 0, alive));
    EXPECT_EQ(alive.load(), 1) << "those of buckets that are through are kept";
    open.reducer.synchronize();
    EXPECT_EQ(alive.load(), 0);
    expect_averages(model, 1);
  });
}

TEST(GradientSources, R6UnderNoSyncTheyAreOnlyMarksAndTheSumIsSent) {
  on_ranks(2, [](World const& world) {
    std::atomic<int> alive{0};
    ToyModel model({5, 6});
    DistributedDataParallel ddp(world, model.parameters());
    int const me = world.rank().value();
    for (int step = 0; step < 3; ++step) {
      {
        NoSyncGuard const guard = ddp.no_sync();
        for (std::size_t const p : {1, 0}) ddp.gradient_ready(p, fresh(p, 5 + p, me, alive));
        EXPECT_EQ(alive.load(), 0);
        ddp.synchronize();
      }
      for (std::size_t const p : {1, 0}) ddp.gradient_ready(p, fresh(p, 5 + p, me, alive, 2));
      ddp.synchronize();
      expect_averages(model, 2, 2);
    }
  });
}

TEST(GradientSources, R6ASumThatIsNotPassedIsAnErrorThatNamesTheParameter) {
  for (bool const says_no_gradient : {false, true}) {
    on_ranks(1, [&](World const& world) {
      std::atomic<int> alive{0};
      ToyModel model({5, 6});
      DistributedDataParallel ddp(world, model.parameters());
      {
        NoSyncGuard const guard = ddp.no_sync();
        for (std::size_t const p : {1, 0}) ddp.gradient_ready(p, fresh(p, 5 + p, 0, alive));
      }
      ddp.gradient_ready(0, fresh(0, 5, 0, alive));
      EXPECT_THAT(message_of([&] {
                    if (says_no_gradient) ddp.no_gradient(1);
                    ddp.synchronize();
                  }),
                  HasSubstr("parameter 1 \"p1\" was marked ready under no_sync() with a gradient in the "
                            "program's own memory, and not in synchronised step 0"));
    });
  }
}

// Each rank uses the parameters but one, of which it gives what it has kept; none uses the last one.
TEST(GradientSources, R7R22OneThatWasKeptCountsThoughItsParameterIsUnused) {
  for (Bytes const bytes : {16_B, 25_MiB}) {
    on_ranks(3, [&](World const& world) {
      std::atomic<int> alive{0};
      std::vector<std::size_t> const counts{8, 12, 0, 4};
      ToyModel model(counts);
      DistributedDataParallel ddp(world, model.parameters(), buckets_of(bytes));
      int const me = world.rank().value();
      for (int step = 0; step < 3; ++step) {
        for (std::size_t p = 0; p < counts.size(); ++p) {
          Tensor source = fresh(p, counts[p], me, alive);
          if (p == 3 || p == static_cast<std::size_t>(me)) {
            reducer_of(ddp).no_gradient(p, std::move(source));
          } else {
            ddp.gradient_ready(p, std::move(source));
          }
        }
        ddp.synchronize();
        EXPECT_EQ(alive.load(), 0);
        expect_averages(model, 3);
        for (std::size_t p = 0; p < counts.size(); ++p) EXPECT_EQ(ddp.has_gradient(p), p != 3) << p;
      }
    });
  }
}

TEST(GradientSources, R8TheLastOneOfRepeatedMarksCounts) {
  on_ranks(2, [](World const& world) {
    std::atomic<int> alive{0};
    ToyModel model({5, 6});
    DistributedDataParallelOptions options;
    options.allow_repeated_ready = true;
    DistributedDataParallel ddp(world, model.parameters(), options);
    int const me = world.rank().value();
    for (int step = 0; step < 3; ++step) {
      ddp.gradient_ready(1, fresh(1, 6, me, alive, 100));
      EXPECT_EQ(alive.load(), 1);
      ddp.gradient_ready(1, fresh(1, 6, me, alive));
      EXPECT_EQ(alive.load(), 1) << "the first one is kept";
      ddp.gradient_ready(0, fresh(0, 5, me, alive, 100));
      for (std::size_t i = 0; i < 5; ++i) model.gradients[0][i] = ToyModel::gradient(0, i, me);
      ddp.gradient_ready(0);  // now it lies there
      ddp.synchronize();
      EXPECT_EQ(alive.load(), 0);
      expect_averages(model, 2);
    }
  });
}

TEST(GradientSources, WrongOnesAreRefusedAndHarmNothing) {
  on_ranks(1, [](World const& world) {
    std::atomic<int> alive{0};
    ToyModel model({5, 6});
    DistributedDataParallel ddp(world, model.parameters());
    auto const refusal = [&](TensorView const& source) {
      return message_of([&] { ddp.gradient_ready(1, Tensor(source, nullptr)); });
    };
    std::vector<double> wide(6);
    std::vector<float> narrow(6);
    EXPECT_THAT(
        refusal(view_of(std::span(wide))),
        HasSubstr("expected the gradient of parameter 1 \"p1\", f32[6] on cpu:0, found f64[6] on cpu:0"));
    EXPECT_THAT(refusal(view_of(std::span(narrow).first(5))), HasSubstr("found f32[5] on cpu:0"));
    EXPECT_THAT(refusal({nullptr, Shape{6}}), HasSubstr("found no memory for f32[6]"));
    TensorView elsewhere = view_of(std::span(narrow));
    elsewhere.device = Device{DeviceKind::cpu, DeviceIndex{1}};
    EXPECT_THAT(refusal(elsewhere), HasSubstr("found f32[6] on cpu:1"));
    TensorView stale = reducer_of(ddp).gradient(1);
    stale.data = model.gradients[1] + 1;
    EXPECT_THAT(refusal(stale), HasSubstr("lies among the buckets, but not where"));
    EXPECT_THAT(message_of([&] { ddp.gradient_ready(2, Tensor()); }), HasSubstr("no parameter 2"));
    EXPECT_FALSE(ddp.in_step());

    DistributedDataParallelOptions in_place;
    in_place.storage = GradientStorage::in_place;
    ToyModel other_model({5, 6});
    DistributedDataParallel other(world, other_model.parameters(), in_place);
    EXPECT_THAT(message_of([&] { other.gradient_ready(1, fresh(1, 6, 0, alive)); }),
                HasSubstr("expected storage = arena, found in_place"));
    for (std::size_t const p : {1, 0}) ddp.gradient_ready(p, fresh(p, 5 + p, 0, alive));
    ddp.synchronize();
    expect_averages(model, 1);
  });
}

TEST(GradientSources, AreLetGoOfWhenAStepFails) {
  on_ranks(1, [](World const& world) {
    std::atomic<int> alive{0};
    ToyModel model({5, 6});
    DistributedDataParallel ddp(world, model.parameters());
    ddp.gradient_ready(1, fresh(1, 6, 0, alive));
    EXPECT_EQ(alive.load(), 1);
    EXPECT_THAT(message_of([&] { ddp.gradient_ready(1, fresh(1, 6, 0, alive)); }), HasSubstr("twice"));
    EXPECT_EQ(alive.load(), 0);
  });
}

}  // namespace
}  // namespace ddp::testing
