// A sharded optimizer (R25) whose program is wrong on the last rank only: every rank that can know is told
// what, long before the deadline.
#include <algorithm>
#include <chrono>
#include <functional>

#include "ddp/core/text.hpp"
#include "libtorch/models.hpp"

namespace ddp::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Update = libtorch::ShardedOptimizer::Update;

// Of the 60 seconds that a rank waits for another.
constexpr std::chrono::seconds kSoon{20};

bool is_last() { return world().rank().value() == world().size() - 1; }

struct ShardedTwoLayers {
  explicit ShardedTwoLayers(Update update, std::uint64_t verify_every = 0)
      : wrapped(world(), *net, how(verify_every)),
        optimizer(
            wrapped,
            [](auto groups) {
              return std::make_unique<libtorch::AdamW>(groups, torch::optim::AdamWOptions(0.01));
            },
            {}, update) {}
  static Wrapped::Options how(std::uint64_t verify_every) {
    Wrapped::Options options = small_buckets();
    options.runtime.verify_every = verify_every;
    options.runtime.sharding = Sharding::optimizer;
    return options;
  }
  void backward() { loss_of(net->forward(random_rows(4, 6, 1))).backward(); }
  void step(bool set_to_none = true) {
    optimizer.zero_grad(set_to_none);
    backward();
    optimizer.step();
  }
  std::shared_ptr<TwoLayers> net = on_device(std::make_shared<TwoLayers>());
  Wrapped wrapped;
  libtorch::ShardedOptimizer optimizer;
};

// Every rank's message has `what`, and the others' name the last rank: from `call`, or from the next step, as
// hosts of GPUs run ahead.
void expect_told(ShardedTwoLayers& training, std::string const& what, std::function<void()> const& call) {
  SCOPED_TRACE(what);
  auto const start = std::chrono::steady_clock::now();
  auto const messages = messages_of([&] {
    call();
    training.step();
  });
  EXPECT_LT(std::chrono::steady_clock::now() - start, kSoon);
  EXPECT_THAT(messages, Each(HasSubstr(what)));
  for (std::size_t r = 0; r + 1 < messages.size(); ++r) {
    EXPECT_THAT(messages[r], HasSubstr(text("rank ", world().size() - 1)));
  }
}

TEST(LibtorchShardedFailures, R25F12RatesThatDifferAreNamedWhereWeightsAreCompared) {
  for (Update const update : {Update::in_step, Update::in_backward}) {
    ShardedTwoLayers training(update, 3);
    auto const set_rate = [&](double rate) {
      training.optimizer.inner().param_groups()[0].options().set_lr(rate);
    };
    for (int step = 0; step < 2; ++step) {
      set_rate(is_last() ? 0.02 : 0.01);
      training.step();
    }
    set_rate(0.005);
    training.step();
    for (int step = 0; step < 2; ++step) training.step();
    set_rate(is_last() ? 0.25 : 0.125);
    auto const messages = messages_of([&] { training.step(); });
    if (world().size() == 1) {
      EXPECT_EQ(messages.front(), "");
      continue;
    }
    EXPECT_THAT(messages, Each(HasSubstr("rank 0 has learning rate 0.125")));
    EXPECT_THAT(messages, Each(HasSubstr(text("rank ", world().size() - 1, " learning rate 0.25"))));
  }
}

// Of the parameter whose gradient is complete first, and of the one that is last.
TEST(LibtorchShardedFailures, R25R22AValueThatOneRankMovedIsToldToAll) {
  for (Update const update : {Update::in_step, Update::in_backward}) {
    for (char const* name : {"first.weight", "second.bias"}) {
      for (int const steps : {0, 2}) {
        ShardedTwoLayers training(update);
        for (int step = 0; step < steps; ++step) training.step();
        at::Tensor const moved = training.net->named_parameters()[name];
        if (is_last()) moved.set_data(moved.detach().clone());
        expect_told(training, text("parameter \"", name, "\" lies in other memory than the runtime gave it"),
                    [&] { training.step(); });
      }
    }
  }
}

TEST(LibtorchShardedFailures, R25R22GradientsThatOneRankDidNotClearAreToldToAll) {
  for (Update const update : {Update::in_step, Update::in_backward}) {
    for (bool const zeros : {false, true}) {
      ShardedTwoLayers training(update);
      for (int step = 0; step < 2; ++step) training.step(!zeros);
      if (!is_last()) training.optimizer.zero_grad(!zeros);
      expect_told(training, "was not cleared since the last step", [&] {
        training.backward();
        training.optimizer.step();
      });
    }
  }
}

TEST(LibtorchShardedFailures, R25R22OneGradientThatOneRankDidNotClearIsToldToAll) {
  for (char const* name : {"first.weight", "second.bias"}) {
    ShardedTwoLayers training(Update::in_step);
    training.step();
    at::Tensor const kept = training.net->named_parameters()[name].grad();
    training.optimizer.zero_grad();
    if (is_last()) training.net->named_parameters()[name].mutable_grad() = kept;
    expect_told(training,
                text("the gradient of parameter \"", name, "\" was not cleared since the last step"), [&] {
                  training.backward();
                  training.optimizer.step();
                });
  }
}

TEST(LibtorchShardedFailures, R25R22AGradientThatOneRankReplacedIsToldToAll) {
  for (int const steps : {0, 2}) {
    ShardedTwoLayers training(Update::in_step);
    for (int step = 0; step < steps; ++step) training.step();
    training.optimizer.zero_grad();
    training.backward();
    at::Tensor& gradient = training.net->second->bias.mutable_grad();
    if (is_last()) gradient = gradient / 2;
    expect_told(training, "the gradient of parameter \"second.bias\" is another tensor than backward() left",
                [&] { training.optimizer.step(); });
  }
}

// Nothing was sent: a program that catches the error has lost nothing.
TEST(LibtorchShardedFailures, R25R22ASecondStepOfOneRankIsThatRanksOwnError) {
  ShardedTwoLayers training(Update::in_step);
  auto const early = messages_of([&] {
    if (is_last()) training.optimizer.step();
  });
  EXPECT_THAT(early.back(), HasSubstr("before the first synchronised step"));
  for (int step = 0; step < 3; ++step) {
    training.step();
    auto const messages = messages_of([&] {
      if (is_last()) training.optimizer.step();
    });
    EXPECT_THAT(messages.back(), HasSubstr(text("twice after synchronised step ", step)));
    for (std::size_t r = 0; r + 1 < messages.size(); ++r) EXPECT_THAT(messages[r], IsEmpty());
  }
  expect_equal_on_ranks(training.net->parameters());
}

// CPU ranks see each other's calls.
TEST(LibtorchShardedFailures, R25R22AStepThatOneRankLeavesOutIsToldToAll) {
  if (world().size() == 1) GTEST_SKIP() << "takes two ranks";
  if (libtorch::device(world()).is_cuda()) GTEST_SKIP() << "takes CPU ranks";
  ShardedTwoLayers training(Update::in_step);
  training.step();
  auto const start = std::chrono::steady_clock::now();
  auto const messages = messages_of([&] {
    training.optimizer.zero_grad();
    training.backward();
    if (!is_last()) training.optimizer.step();
    training.optimizer.zero_grad();
    training.backward();
  });
  EXPECT_LT(std::chrono::steady_clock::now() - start, kSoon);
  EXPECT_THAT(messages, Each(AllOf(HasSubstr("differs between ranks: rank 0 called all_gather"),
                                   HasSubstr("called reduce_scatter"), HasSubstr("the first of step 2"))));
}

}  // namespace
}  // namespace ddp::testing
