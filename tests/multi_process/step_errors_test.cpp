// Errors of a step that all ranks have: each rank gets the same one, and no weights have changed.
#include <gmock/gmock.h>

#include <thread>

#include "ddp/parallel/autograd_support.hpp"
#include "support/errors.hpp"
#include "support/models/own_reducer.hpp"

namespace ddp::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

// The last rank has sent all of the step, and reads the outcome late.
TEST(StepErrors, R7AllRanksGetTheErrorForUnusedParametersHoweverLateTheyReadIt) {
  DeviceToy<float> model(world(), {10, 20});
  DistributedDataParallelOptions options;
  options.unused = DistributedDataParallelOptions::Unused::error;
  OwnReducer reducer(model, options);
  reducer->gradient_ready(1);
  if (world().rank().value() == world().size() - 1) {
    reducer->gradient_ready(0);
    std::this_thread::sleep_for(std::chrono::seconds(1));
    EXPECT_NO_THROW(reducer.communicator().check_health()) << "another rank ended the group";
  }
  auto const messages = gathered(message_of([&] { reducer->synchronize(); }));
  EXPECT_THAT(messages, Each(messages[0]));
  EXPECT_THAT(messages[0], HasSubstr("parameter 0 \"p0\" on rank"));
}

TEST(StepErrors, R12NoWeightsChangeByAStepThatRanksBeginDifferently) {
  DeviceToy<float> model(world(), {5000});
  OwnReducer reducer(model);
  auto const before = model.value(0);
  bool const odd = world().rank() == 1;
  if (odd) reducer->set_weight(2.0);
  auto const messages = gathered(message_of([&] { reducer.train(); }));
  EXPECT_THAT(messages, Each(messages[0]));
  EXPECT_THAT(messages[0], HasSubstr("set_weight() was called on rank 1 and not on rank 0 in step 0"));
  EXPECT_EQ(model.value(0), before);
  EXPECT_NE(before[1], 0.0F) << "the optimizer would not show";
}

// The same where a rank comes late to the step: nobody steps before it has begun.
TEST(StepErrors, R12NoWeightsChangeByAStepThatALateRankBeginsDifferently) {
  DeviceToy<float> model(world(), {5000});
  OwnReducer reducer(model);
  auto const before = model.value(0);
  if (world().rank() == 1) {
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    reducer->set_weight(2.0);
  }
  auto const messages = gathered(message_of([&] { reducer.train(); }));
  EXPECT_THAT(messages, Each(messages[0]));
  EXPECT_EQ(model.value(0), before);
}

TEST(StepErrors, R22EveryRankGetsTheReasonOfTheOneThatGaveItsStepUp) {
  DeviceToy<float> model(world(), {10, 20});
  OwnReducer reducer(model);
  reducer.step(2);
  reducer.wait();
  world().barrier();  // giving up ends what is under way: the first step is over on every rank
  if (world().rank() == 1) {
    reducer->gradient_ready(1);
    reducer->abandon_step("the loss is odd");
    EXPECT_FALSE(reducer->in_step());
  }
  auto const messages = gathered(message_of([&] {
    reducer.step(2);
    reducer.wait();
  }));
  EXPECT_THAT(messages, Each(HasSubstr("rank 1 gave up synchronised step 1 of ")));
  EXPECT_THAT(messages, Each(HasSubstr(": the loss is odd")));
}

// Where has_gradient() waits for hosts, not for GPUs, too. All ranks leave the second parameter out.
TEST(StepErrors, R27NoRankWaitsForWhatARankThatFailedHasUsed) {
  DeviceToy<float> model(world(), {10, 20});
  DistributedDataParallel ddp(world(), model.parameters(), DistributedDataParallelOptions{});
  auto const step = [&] {
    ddp.gradient_ready(0);
    ddp.synchronize();
    return ddp.has_gradient(1);
  };
  EXPECT_FALSE(step());
  EXPECT_FALSE(step());
  world().stream().synchronize();
  world().barrier();  // giving up ends what is under way
  if (world().rank() == 1) {
    ddp.gradient_ready(0);
    AutogradSupport(ddp).abandon_step("the loss is odd");
  }
  EXPECT_THAT(gathered(message_of(step)), Each(HasSubstr("the loss is odd")));
}

TEST(StepErrors, R12AStepThatAllBeginAlikeTrains) {
  DeviceToy<float> model(world(), {5000});
  OwnReducer reducer(model);
  for (int step = 0; step < 3; ++step) {
    if (step == 1) reducer->set_weight(1.0);
    reducer.train();
  }
  EXPECT_EQ(reducer->steps(), 3U);
  world().barrier();
}

// Two ranks that have done as many steps may have other values: one of them lacks an update.
TEST(StepErrors, R26OnlyAFurtherStepSaysThatTheUpdateOfTheLastOneIsThere) {
  DeviceToy<float> model(world(), {10, 20});
  OwnReducer reducer(model);
  EXPECT_FALSE(reducer->awaits_update());
  for (int step = 0; step < 2; ++step) {
    reducer->gradient_ready(1);
    EXPECT_FALSE(reducer->awaits_update());
    reducer->gradient_ready(0);
    reducer->synchronize();
    EXPECT_TRUE(reducer->awaits_update());
  }
  {
    auto const micro_step = reducer->no_sync();
    reducer->gradient_ready(1);
    EXPECT_TRUE(reducer->awaits_update()) << "which sends nothing";
  }
}

}  // namespace
}  // namespace ddp::testing
