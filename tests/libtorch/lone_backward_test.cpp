// A backward() on one rank only, which counts as a step of all: ranks notice it by what their programs do
// between steps, and take nothing for one that is not.
#include <memory>
#include <string>
#include <vector>

#include "ddp/core/text.hpp"
#include "libtorch/models.hpp"

namespace ddp::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

struct Training {
  explicit Training(Wrapped::Options options = small_buckets())
      : wrapped(world(), *net, std::move(options)), optimizer(net->parameters(), 0.1) {}
  void backward() const { loss_of(net->forward(random_rows(4, 6, 1))).backward(); }
  std::shared_ptr<TwoLayers> net = on_device(std::make_shared<TwoLayers>());
  Wrapped wrapped;
  torch::optim::AdamW optimizer;  // SGD writes through data(), which PyTorch does not count
};

enum class Place { before_zero_grad, before_backward, before_optimizer, nowhere };
enum class Clears { neither, before, after };

// Its steps from the second one on, of which the last rank's has a lone backward() in it.
void train_with_a_lone_backward(Training& training, Place place, Clears clears, bool to_none, int steps) {
  auto const lone = [&](Place here, int step) {
    if (here != place || step != 1 || world().rank().value() != world().size() - 1) return;
    if (clears == Clears::before) training.net->zero_grad(to_none);
    training.backward();
    if (clears == Clears::after) training.net->zero_grad(to_none);
  };
  for (int step = 0; step < steps; ++step) {
    lone(Place::before_zero_grad, step);
    training.optimizer.zero_grad(to_none);
    lone(Place::before_backward, step);
    training.backward();
    lone(Place::before_optimizer, step);
    training.optimizer.step();
  }
}

TEST(LibtorchLoneBackward, R12R22IsAnErrorThatNamesItsRankOnEveryRankByTheNextStep) {
  if (world().size() == 1) GTEST_SKIP() << "takes two ranks";
  for (Place const place : {Place::before_zero_grad, Place::before_backward, Place::before_optimizer}) {
    for (Clears const clears : {Clears::neither, Clears::before, Clears::after}) {
      for (bool const to_none : {true, false}) {
        SCOPED_TRACE(text("place ", static_cast<int>(place), " clears ", static_cast<int>(clears), to_none));
        Training training;
        auto const messages =
            messages_of([&] { train_with_a_lone_backward(training, place, clears, to_none, 4); });
        auto const advice = text("put no_sync() around one of rank ", world().size() - 1, " alone");
        EXPECT_THAT(messages, Each(AllOf(HasSubstr("ranks are at different places of their loops"),
                                         HasSubstr(advice))));
        EXPECT_LE(training.wrapped.runtime().reducer().steps(), 3U) << "one after that of the lone one";
      }
    }
  }
}

// As a program that looks at gradients only.
TEST(LibtorchLoneBackward, R12R22IsNoticedWhereNoParameterEverChanges) {
  if (world().size() == 1) GTEST_SKIP() << "takes two ranks";
  Training training;
  auto const messages = messages_of([&] {
    for (int step = 0; step < 4; ++step) {
      if (step == 2 && world().rank() == 0) training.backward();
      training.net->zero_grad();
      training.backward();
    }
  });
  EXPECT_THAT(messages, Each(HasSubstr("in synchronised step 2: before it rank 0 cleared no gradient")));
  EXPECT_EQ(training.wrapped.runtime().reducer().steps(), 2U) << "nothing was averaged with it";
}

TEST(LibtorchLoneBackward, R22UnderNoSyncHarmsNothing) {
  for (Place const place : {Place::before_zero_grad, Place::before_backward}) {
    Training training;
    auto whole = copy_of(*training.net);
    for (int step = 0; step < 3; ++step) {
      for (Place const here : {Place::before_zero_grad, Place::before_backward}) {
        if (here == Place::before_backward) training.optimizer.zero_grad();
        if (here != place || world().rank() != 0) continue;
        auto const guard = training.wrapped.no_sync();
        training.backward();
        if (here == Place::before_backward) training.optimizer.zero_grad();
      }
      training.backward();
      whole->zero_grad();
      loss_of(whole->forward(random_rows(4, 6, 1))).backward();
      expect_same_gradients(*training.net, *whole);
    }
  }
}

// ---- what all ranks do alike

TEST(LibtorchLoneBackward, R22StepsWithoutAnOptimizerAreLegalOnAllRanksAlike) {
  for (bool const to_none : {true, false}) {
    Training training;
    for (int step = 0; step < 9; ++step) {
      if (step % 4 == 0) training.optimizer.zero_grad(to_none);
      training.backward();
      if (step % 3 == 0) training.optimizer.step();  // of others the update is skipped
    }
    EXPECT_EQ(training.wrapped.runtime().reducer().steps(), 9U);
  }
}

// Different numbers of micro-steps; no zero_grad() on the rank that has no data.
TEST(LibtorchLoneBackward, R22RanksMayDoDifferentThingsUnderNoSyncAndWithoutData) {
  Training training;
  int const rank = world().rank().value();
  for (int step = 0; step < 8; ++step) {
    bool const idle = world().size() > 1 && rank == step % 4;
    training.wrapped.set_weight(idle ? 0 : 1);
    if (idle) {
      training.wrapped.synchronize();
    } else {
      if (step % 2 == 0) training.optimizer.zero_grad(step % 4 == 0);
      for (int micro = 0; micro < (rank + step) % 3; ++micro) {
        auto const guard = training.wrapped.no_sync();
        training.backward();
      }
      training.backward();
    }
    training.optimizer.step();
  }
  EXPECT_EQ(training.wrapped.runtime().reducer().steps(), 8U);
}

TEST(LibtorchLoneBackward, R11R22RanksThatJoinAreNoneThatDiffer) {
  auto options = small_buckets();
  options.runtime.uneven = ReducerOptions::Uneven::divide_by_live;
  Training training(options);
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (int step = 0; step < 2 + world().rank().value(); ++step) {
      training.optimizer.zero_grad();
      training.backward();
      training.optimizer.step();
    }
    training.wrapped.join([&] { training.optimizer.step(); });
  }
}

TEST(LibtorchLoneBackward, R22UpdatesOfBucketsAreNoneOfTheProgramsBetweenSteps) {
  Training training;
  training.wrapped.on_bucket_ready([](std::vector<torch::Tensor> const& parameters) {
    for (torch::Tensor parameter : parameters) parameter.add_(parameter.grad(), -0.1);
  });
  for (int step = 0; step < 4; ++step) {
    if (step % 2 == 0) training.net->zero_grad();
    training.backward();
  }
  if (world().size() == 1) return;
  auto const messages = messages_of([&] {
    if (world().rank() == 0) training.backward();
    training.net->zero_grad();
    training.backward();
  });
  EXPECT_THAT(messages, Each(HasSubstr("rank 0 cleared no gradient")));
}

}  // namespace
}  // namespace ddp::testing
