// Models that a program wraps one after another: each gets the communicator of one that is gone.
#include <gmock/gmock.h>

#include <memory>
#include <optional>

#include "parallel/world/world_state.hpp"
#include "support/errors.hpp"
#include "support/models/device_toy.hpp"
#include "support/ranks/in_process_worlds.hpp"
#include "support/ranks/multi_process.hpp"

namespace ddp::testing {
namespace {

using Options = DistributedDataParallelOptions;

std::size_t spares() { return WorldAccess::state(world()).spares.size(); }

// A model whose parameters are as many as a program of this kind has at this moment.
struct WrappedToy {
  explicit WrappedToy(std::size_t count, Options options = {})
      : model(world(), {count, 3}), ddp(world(), model.parameters(), options) {}
  void expect_averages() {
    model.fill_gradients(world().rank().value());
    mark_all(ddp);
    ddp.synchronize();
    for (std::size_t p = 0; p < 2; ++p) {
      auto const found = model.gradient(p);
      for (std::size_t i = 0; i < found.size(); ++i) {
        ASSERT_FLOAT_EQ(found[i], ToyModel::average_gradient(p, i, world().size())) << p << ' ' << i;
      }
    }
  }
  DeviceToy<float> model;
  DistributedDataParallel ddp;
};

TEST(LaterModels, GetTheCommunicatorOfOneThatIsGone) {
  std::size_t const before = spares();
  for (std::size_t count = 1000; count < 1020; ++count) {
    WrappedToy wrapped(count);
    wrapped.expect_averages();
    EXPECT_LE(spares(), before) << "a new one was made beside one that is free";
  }
  EXPECT_EQ(spares(), std::max<std::size_t>(before, 1));
}

TEST(LaterModels, AreMadeBeforeTheirPredecessorsAreGone) {
  std::unique_ptr<WrappedToy> wrapped;
  for (std::size_t count = 1000; count < 1010; ++count) {
    wrapped = std::make_unique<WrappedToy>(count);
    wrapped->expect_averages();
  }
  std::size_t const others = spares();
  wrapped.reset();
  EXPECT_EQ(spares(), others + 1);
  EXPECT_LE(spares(), 2U);
}

TEST(LaterModels, ThatLiveTogetherShareNone) {
  WrappedToy one(1000);
  WrappedToy other(500);
  for (int step = 0; step < 3; ++step) {  // in another order on every second rank
    bool const odd = world().rank().value() % 2 != 0;
    for (WrappedToy* const each : {odd ? &one : &other, odd ? &other : &one}) {
      each->model.fill_gradients(world().rank().value());
      mark_all(each->ddp);
    }
    one.ddp.synchronize();
    other.ddp.synchronize();
    EXPECT_FLOAT_EQ(one.model.gradient(0)[7], ToyModel::average_gradient(0, 7, world().size()));
    EXPECT_FLOAT_EQ(other.model.gradient(0)[8], ToyModel::average_gradient(0, 8, world().size()));
  }
}

TEST(LaterModels, R18TakeOneThatSumsInTheirOrder) {
  for (bool const deterministic : {false, true, false, true}) {
    Options options;
    options.deterministic = deterministic;
    WrappedToy wrapped(1000, options);
    wrapped.expect_averages();
  }
  std::size_t in_rank_order = 0;
  for (SpareLane const& each : WorldAccess::state(world()).spares)
    in_rank_order += each.in_rank_order ? 1 : 0;
  EXPECT_EQ(in_rank_order, 1U);
}

// A model that one rank still holds is no spare, whatever the others have.
TEST(LaterModels, OfRanksThatKeepDifferentOnesGetANewOne) {
  std::optional<WrappedToy> first(std::in_place, 1000);
  first->expect_averages();
  world().barrier();
  if (world().rank() != 0) first.reset();
  WrappedToy second(500);
  second.expect_averages();
  first.reset();
  WrappedToy third(400);
  third.expect_averages();
}

TEST(LaterModels, FindTheOneThatAllHaveWhateverTheOrderOfTheEnds) {
  {
    std::optional<WrappedToy> one(std::in_place, 1000);
    std::optional<WrappedToy> other(std::in_place, 500);
    one->expect_averages();
    other->expect_averages();
    world().barrier();
    bool const odd = world().rank().value() % 2 != 0;
    (odd ? one : other).reset();
  }
  std::size_t const before = spares();
  for (std::size_t count = 1000; count < 1005; ++count) {
    WrappedToy wrapped(count);
    wrapped.expect_averages();
    EXPECT_EQ(spares(), before - 1);
  }
}

TEST(LaterModels, GetNoneThatHasFailed) {
  if (world().size() < 2) GTEST_SKIP() << "needs 2 ranks";
  {
    WrappedToy wrapped(1000);
    wrapped.expect_averages();
    world().barrier();
    if (world().rank() == 0) wrapped.ddp.gradient_ready(1);  // a step that this rank gives up
  }
  world().barrier();
  WrappedToy next(1000);
  next.expect_averages();
}

// What ranks have kept beside it they all still have, although the streams of these waited for its work.
TEST(LaterModels, OneThatHasFailedTakesNoOtherWithIt) {
  if (world().size() < 2) GTEST_SKIP() << "needs 2 ranks";
  {
    WrappedToy one(1000);
    WrappedToy other(500);
    WrappedToy third(400);
    for (WrappedToy* const each : {&one, &other, &third}) each->expect_averages();
  }
  std::size_t const before = spares();
  {
    WrappedToy wrapped(1000);
    WrappedToy beside(500);
    wrapped.expect_averages();
    beside.expect_averages();
    world().barrier();
    if (world().rank() == 0) wrapped.ddp.gradient_ready(1);
  }
  world().barrier();
  WrappedToy next(1000);
  EXPECT_EQ(spares(), before - 2) << "one has failed, one is in use";
  next.expect_averages();
}

}  // namespace
}  // namespace ddp::testing
