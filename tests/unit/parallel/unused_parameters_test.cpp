// What becomes of parameters that a rank does not mark (R7).
#include <gmock/gmock.h>

#include <array>
#include <barrier>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "ddp/core/text.hpp"
#include "ddp/parallel/distributed_data_parallel.hpp"
#include "parallel/ddp/reducer_access.hpp"
#include "support/models/toy_model.hpp"
#include "support/ranks/in_process_worlds.hpp"

namespace ddp::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A bucket for each parameter of four elements and more, sent beside the calling thread.
std::unique_ptr<Reducer> make_reducer(World const& world, Communicator& communicator, ToyModel& model,
                                      Stream& comm_stream, GradientStorage storage) {
  DistributedDataParallelOptions options;
  options.storage = storage;
  options.bucket_bytes = options.first_bucket_bytes = 16_B;
  ReducerLane const lane{world.device(), &backend_of(communicator), &world.stream(), &comm_stream};
  return std::make_unique<Reducer>(
      ReducerRanks("test", world.shared_control(), world.control().everyone(), std::chrono::seconds(60)),
      std::vector{lane}, model.parameters(), options);
}

std::unique_ptr<Reducer> make_reducer(World const& world, ToyModel& model, Stream& comm_stream,
                                      GradientStorage storage) {
  return make_reducer(world, world.communicator(), model, comm_stream, storage);
}

// A communicator of two ranks that see what the other says with the begin of a step, as those of GPUs of one
// host.
class Seen final : public CommunicatorBackend {
 public:
  struct Ranks {
    std::array<std::uint8_t, 2> said{};
    std::barrier<> meet{2};
  };
  Seen(std::unique_ptr<Communicator> inner, Ranks& ranks)
      : CommunicatorBackend(inner->rank(), inner->size(), inner->device()),
        inner_(std::move(inner)),
        ranks_(ranks) {}
  [[nodiscard]] std::string_view backend() const noexcept override { return inner_->backend(); }
  [[nodiscard]] Tensor allocate(Bytes bytes) override { return inner_->allocate(bytes); }
  void check_health() const override { inner_->check_health(); }
  void abort(std::string_view reason) noexcept override { inner_->abort(reason); }
  [[nodiscard]] SinceLastStep settle_step() override { return all_; }

 private:
  void enqueue(std::span<Operation const> operations, Stream& stream) override {
    if (operations[0].begins.begins()) {  // before any work for which a thread may wait
      ranks_.said[rank().index()] = operations[0].begins.since().bits;
      ranks_.meet.arrive_and_wait();
      all_.bits = static_cast<std::uint8_t>(ranks_.said[0] | ranks_.said[1]);
      ranks_.meet.arrive_and_wait();
    }
    backend_of(*inner_).enqueue(operations, stream);
  }
  [[nodiscard]] std::unique_ptr<Communicator> split_off(std::span<Rank const> ranks) override {
    return inner_->split(ranks);
  }

  std::unique_ptr<Communicator> inner_;
  Ranks& ranks_;
  SinceLastStep all_;
};

class Storages : public ::testing::TestWithParam<GradientStorage> {};

TEST_P(Storages, R7UnmarkedParametersCountAsZeroAndAreKnown) {
  on_ranks(3, [&](World const& world) {
    ToyModel model({5, 6, 7});
    DistributedDataParallelOptions options;
    options.storage = GetParam();
    options.bucket_bytes = options.first_bucket_bytes = 16_B;
    DistributedDataParallel ddp(world, model.parameters(), options);
    EXPECT_FALSE(ddp.has_gradient(0)) << "before the first step";
    for (int step = 0; step < 3; ++step) {
      model.fill_gradients(
          world.rank().value());  // also those that are not marked: stale values must not be sent
      ddp.gradient_ready(2);
      if (world.rank() == 1) ddp.gradient_ready(1);
      ddp.synchronize();
      EXPECT_EQ(model.gradients[2][3], ToyModel::average_gradient(2, 3, 3));
      EXPECT_FLOAT_EQ(model.gradients[1][3], ToyModel::gradient(1, 3, 1) / 3) << "two ranks counted as zero";
      EXPECT_EQ(model.gradients[0][3], 0.0F) << "unused on every rank";
      EXPECT_TRUE(ddp.has_gradient(2));
      EXPECT_TRUE(ddp.has_gradient(1));
      EXPECT_FALSE(ddp.has_gradient(0));
      model.clear_gradients();
    }
  });
}

// Buckets travel without synchronize(): it is not what completes them.
TEST_P(Storages, R7AParameterWithoutAGradientCountsAsUnmarkedAndDelaysNoBucket) {
  on_ranks(2, [&](World const& world) {
    ToyModel model({4, 5, 4});
    HostStream comm_stream;
    auto const reducer = make_reducer(world, model, comm_stream, GetParam());
    for (int step = 0; step < 3; ++step) {
      model.clear_gradients();
      model.fill_gradients(world.rank().value());
      if (world.rank() == 1) {
        reducer->gradient_ready(2);
      } else {
        reducer->no_gradient(2);
      }
      reducer->no_gradient(1);
      reducer->gradient_ready(0);
      comm_stream.synchronize();
      EXPECT_EQ(model.gradients[2][3], ToyModel::gradient(2, 3, 1) / 2);
      EXPECT_EQ(model.gradients[1][4], 0.0F);
      EXPECT_EQ(model.gradients[0][3], ToyModel::average_gradient(0, 3, 2));
      reducer->synchronize();
      EXPECT_EQ(model.gradients[2][3], ToyModel::gradient(2, 3, 1) / 2);
      EXPECT_TRUE(reducer->has_gradient(2));
      EXPECT_FALSE(reducer->has_gradient(1));
    }
  });
}

// The last of the model and first of the plan, which a rank leaves out, waits for synchronize() behind all
// others.
TEST_P(Storages, R27AParameterThatARankHasLeftOutDelaysNoOther) {
  on_ranks(2, [&](World const& world) {
    ToyModel model({4, 5, 4});
    HostStream comm_stream;
    auto const reducer = make_reducer(world, model, comm_stream, GetParam());
    for (int step = 0; step < 4; ++step) {
      model.clear_gradients();
      model.fill_gradients(world.rank().value());
      if ((step + world.rank().value()) % 2 == 0) reducer->gradient_ready(2);
      reducer->gradient_ready(1);
      reducer->gradient_ready(0);
      if (step > 0) {
        comm_stream.synchronize();
        EXPECT_EQ(model.gradients[1][4], ToyModel::average_gradient(1, 4, 2)) << "it has not travelled";
        EXPECT_EQ(model.gradients[0][3], ToyModel::average_gradient(0, 3, 2));
      }
      reducer->synchronize();
      EXPECT_EQ(model.gradients[2][3], ToyModel::gradient(2, 3, step % 2) / 2);
    }
  });
}

// As GPU ranks of one host do. From a step on, ranks use the first of the plan by turns, and nobody the
// second.
TEST_P(Storages, R27CpusTellEachOtherWhatAnyRankUsedAStepAfterARankHasLeftSomethingOut) {
  for (int const first : {0, 1, 3}) {
    Seen::Ranks ranks;
    on_ranks(2, [&](World const& world) {
      ToyModel model({4, 5, 4});
      HostStream comm_stream;
      HostStream host_stream;
      std::unique_ptr<Communicator> hosts;
      Seen seen(world.communicator().split(all_ranks(2), "seen"), ranks);
      auto const reducer = make_reducer(world, seen, model, comm_stream, GetParam());
      reducer->set_cpu_lane([&] {
        EXPECT_EQ(hosts, nullptr) << "a second lane";
        hosts = world.communicator().split(all_ranks(2), "hosts");
        return ReducerLane{world.device(), &backend_of(*hosts), &world.stream(), &host_stream};
      });
      std::uint64_t plan = 0;
      for (int step = 0; step < first + 6; ++step) {
        bool const all_use_all = step < first;
        bool const all_use_it = all_use_all || step == first + 3;
        if (all_use_it || (step + world.rank().value()) % 2 == 0) reducer->gradient_ready(2);
        if (all_use_all) reducer->gradient_ready(1);
        reducer->gradient_ready(0);
        reducer->synchronize();
        EXPECT_EQ(hosts != nullptr, step > first) << step << " of " << first;
        if (step == 0) plan = reducer->plan().hash();
        EXPECT_EQ(reducer->plan().hash(), plan) << "gradients moved";
        if (step == first + 2) continue;  // nobody asks
        EXPECT_TRUE(reducer->has_gradient(0));
        EXPECT_EQ(reducer->has_gradient(1), all_use_all);
        EXPECT_TRUE(reducer->has_gradient(2)) << "one rank has used it";
      }
      reducer->gradient_ready(0);
      reducer->synchronize();
      EXPECT_FALSE(reducer->has_gradient(2)) << "this step's answer, not the last one's";
      host_stream.synchronize();
      world.barrier();
    });
  }
}

// A rank that has no data, or has joined, leaves nothing out.
TEST_P(Storages, R27ARankWithoutDataStartsNoTelling) {
  Seen::Ranks ranks;
  on_ranks(2, [&](World const& world) {
    ToyModel model({4, 5});
    HostStream comm_stream;
    Seen seen(world.communicator().split(all_ranks(2), "seen"), ranks);
    auto const reducer = make_reducer(world, seen, model, comm_stream, GetParam());
    reducer->set_cpu_lane([]() -> ReducerLane { throw Error(ErrorCode::invalid_state, "nobody needs it"); });
    for (int step = 0; step < 4; ++step) {
      bool const has_data = step == 0 || world.rank() == 0;
      reducer->set_weight(has_data ? 1.0 : 0.0);
      for (std::size_t p = 0; has_data && p < 2; ++p) reducer->gradient_ready(1 - p);
      reducer->synchronize();
    }
    world.barrier();
  });
}

TEST_P(Storages, R27CpusTellEachOtherNothingWhereEveryParameterIsUsed) {
  Seen::Ranks ranks;
  on_ranks(2, [&](World const& world) {
    ToyModel model({4, 5});
    HostStream comm_stream;
    Seen seen(world.communicator().split(all_ranks(2), "seen"), ranks);
    auto const reducer = make_reducer(world, seen, model, comm_stream, GetParam());
    reducer->set_cpu_lane([]() -> ReducerLane { throw Error(ErrorCode::invalid_state, "nobody needs it"); });
    for (int step = 0; step < 3; ++step) {
      reducer->gradient_ready(1);
      reducer->gradient_ready(0);
      reducer->synchronize();
      EXPECT_TRUE(reducer->has_gradient(1));
    }
    world.barrier();
  });
}

TEST_P(Storages, R6R7AParameterWithoutAGradientSendsWhatItsMicroStepsAdded) {
  on_ranks(2, [&](World const& world) {
    ToyModel model({4, 5});
    DistributedDataParallelOptions options;
    options.storage = GetParam();
    DistributedDataParallel ddp(world, model.parameters(), options);
    {
      NoSyncGuard const guard = ddp.no_sync();
      model.fill_gradients(world.rank().value());
      mark_all(ddp);
      ddp.no_gradient(1);  // does nothing here
      ddp.synchronize();
    }
    ddp.no_gradient(1);
    ddp.gradient_ready(0);
    ddp.synchronize();
    EXPECT_EQ(model.gradients[1][4], ToyModel::average_gradient(1, 4, 2));
    EXPECT_TRUE(ddp.has_gradient(1));
  });
}

INSTANTIATE_TEST_SUITE_P(All, Storages,
                         ::testing::Values(GradientStorage::arena, GradientStorage::in_place,
                                           GradientStorage::copy),
                         [](auto const& parameters) { return std::string(to_string(parameters.param)); });

TEST(DistributedDataParallel, R7AnErrorForUnusedParametersNamesThemAndTheRanksOnEveryRank) {
  on_ranks(3, [](World const& world) {
    ToyModel model({5, 6, 7});
    DistributedDataParallelOptions options;
    options.unused = DistributedDataParallelOptions::Unused::error;
    DistributedDataParallel ddp(world, model.parameters(), options);
    mark_all(ddp);
    ddp.synchronize();
    EXPECT_TRUE(ddp.has_gradient(1));
    ddp.gradient_ready(2);
    if (world.rank() == 1) ddp.gradient_ready(0);
    auto const message = message_of([&] { ddp.synchronize(); });
    EXPECT_THAT(message, HasSubstr("parameter 0 \"p0\" on ranks 0, 2"));
    EXPECT_THAT(message, HasSubstr("parameter 1 \"p1\" on ranks 0, 1, 2"));
    EXPECT_THAT(message, Not(HasSubstr("p2")));
    EXPECT_THAT(message_of([&] { ddp.synchronize(); }), HasSubstr("cannot be used any more"));
  });
}

TEST(DistributedDataParallel, R7ARankWithWeight0MayLeaveParametersOut) {
  on_ranks(3, [](World const& world) {
    ToyModel model({5, 6, 7});
    DistributedDataParallel ddp(world, model.parameters(),
                                {.unused = DistributedDataParallelOptions::Unused::error});
    bool const has_samples = world.rank() != 1;
    for (int step = 0; step < 3; ++step) {
      model.clear_gradients();
      model.fill_gradients(world.rank().value());
      ddp.set_weight(has_samples ? 2 : 0);
      if (has_samples) mark_all(ddp);
      ddp.synchronize();
      EXPECT_EQ(model.gradients[1][3], (ToyModel::gradient(1, 3, 0) + ToyModel::gradient(1, 3, 2)) / 2);
    }
    ddp.set_weight(has_samples ? 2 : 0);
    if (world.rank() == 0) mark_all(ddp);
    EXPECT_THAT(message_of([&] { ddp.synchronize(); }), HasSubstr("parameter 0 \"p0\" on rank 2;"));
  });
}

TEST(DistributedDataParallel, R7WhatAnyRankTellsWithTheTailEveryRankHears) {
  for (auto const unused :
       {DistributedDataParallelOptions::Unused::zero, DistributedDataParallelOptions::Unused::error}) {
    on_ranks(3, [&](World const& world) {
      ToyModel model({5, 6});
      DistributedDataParallel ddp(world, model.parameters(), {.unused = unused});
      int step = 0;
      reducer_of(ddp).tell_with_tail(3, [&](std::span<std::uint8_t> flags) {
        ASSERT_EQ(flags.size(), 3U);
        for (std::size_t f = 0; f < 3; ++f) flags[f] = world.rank().index() == f && step % 2 == 1 ? 1 : 0;
      });
      auto const told = [&] {
        auto const flags = reducer_of(ddp).told_with_tail();
        return std::vector<int>(flags.begin(), flags.end());
      };
      EXPECT_THAT(told(), ElementsAre(0, 0, 0));
      for (; step < 4; ++step) {
        mark_all(ddp);
        ddp.synchronize();
        EXPECT_THAT(told(), ElementsAre(step % 2, step % 2, step % 2));
        EXPECT_TRUE(ddp.has_gradient(1));
      }
      EXPECT_THAT(message_of([&] { reducer_of(ddp).tell_with_tail(3, {}); }),
                  HasSubstr("after the first step has begun"));
    });
  }
}

TEST(DistributedDataParallel, R7AParameterWithoutElementsCountsAsUsedWhenItIsMarked) {
  for (std::vector<std::size_t> const& counts :
       std::vector<std::vector<std::size_t>>{{0, 5, 0, 6}, {5, 0}, {0, 0}}) {
    on_ranks(2, [&](World const& world) {
      ToyModel model(counts);
      DistributedDataParallelOptions options;
      options.unused = DistributedDataParallelOptions::Unused::error;
      DistributedDataParallel ddp(world, model.parameters(), options);
      for (int step = 0; step < 3; ++step) {
        mark_all(ddp);
        ddp.synchronize();
        for (std::size_t p = 0; p < counts.size(); ++p) EXPECT_TRUE(ddp.has_gradient(p)) << p;
      }
      for (std::size_t p = counts.size(); p-- > 0;) {
        if (counts[p] != 0 || world.rank() != 1) ddp.gradient_ready(p);
      }
      EXPECT_THAT(message_of([&] { ddp.synchronize(); }), HasSubstr("\" on rank 1"));
    });
  }
}

TEST(DistributedDataParallel, R7R8AGradientAndNoneInOneStepIsAnErrorThatNamesTheParameter) {
  on_ranks(1, [](World const& world) {
    ToyModel model({5, 6});
    DistributedDataParallel first(world, model.parameters());
    first.gradient_ready(1);
    EXPECT_THAT(
        message_of([&] { first.no_gradient(1); }),
        HasSubstr("no_gradient() for parameter 1 \"p1\" after gradient_ready() in synchronised step 0"));
    DistributedDataParallel second(world, model.parameters());
    second.no_gradient(1);
    EXPECT_THAT(message_of([&] { second.gradient_ready(1); }),
                HasSubstr("gradient_ready() for parameter 1 \"p1\" after no_gradient()"));
    DistributedDataParallel third(world, model.parameters());
    third.no_gradient(1);
    EXPECT_THAT(message_of([&] { third.no_gradient(1); }), HasSubstr("after no_gradient()"));
  });
}

// Rank 1 has sent all of the step, and reads the outcome late.
TEST(Reducer, R7NobodyEndsTheGroupBeforeAllHaveTheErrorThatAllHave) {
  std::vector<std::string> messages(2);
  on_ranks(2, [&](World const& world) {
    ToyModel model({5, 6});
    HostStream comm_stream;
    DistributedDataParallelOptions options;
    options.unused = DistributedDataParallelOptions::Unused::error;
    ReducerLane const lane{world.device(), &backend_of(world.communicator()), &world.stream(), &comm_stream};
    Reducer reducer(
        ReducerRanks("test", world.shared_control(), world.control().everyone(), std::chrono::seconds(60)),
        {lane}, model.parameters(), options);
    reducer.gradient_ready(1);
    if (world.rank() == 1) {
      reducer.gradient_ready(0);
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      EXPECT_NO_THROW(world.communicator().check_health()) << "rank 0 ended the group";
    }
    messages[world.rank().index()] = message_of([&] { reducer.synchronize(); });
  });
  EXPECT_THAT(messages[0], HasSubstr("parameter 0 \"p0\" on rank 0."));
  EXPECT_EQ(messages[1], messages[0]);
}

}  // namespace
}  // namespace ddp::testing
