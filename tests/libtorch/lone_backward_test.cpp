// A backward() on one rank only, which counts as a step of all: ranks notice it by what their programs do
// between steps, and take nothing for one that is not.
#include <cmath>
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

// Whether PyTorch counts what an optimizer writes. What SGD does is written through data().
enum class Writes { counted, uncounted };

std::unique_ptr<torch::optim::Optimizer> optimizer_of(TwoLayers const& net, Writes writes) {
  if (writes == Writes::counted) return std::make_unique<torch::optim::AdamW>(net.parameters(), 0.1);
  auto const options = torch::optim::SGDOptions(0.1).weight_decay(0.1);
  return std::make_unique<torch::optim::SGD>(net.parameters(), options);
}

struct Training {
  explicit Training(Wrapped::Options options = small_buckets(), Writes writes = Writes::counted)
      : wrapped(world(), *net, std::move(options)), optimizer(optimizer_of(*net, writes)) {}
  void backward() const { loss_of(net->forward(random_rows(4, 6, 1))).backward(); }
  std::shared_ptr<TwoLayers> net = on_device(std::make_shared<TwoLayers>());
  Wrapped wrapped;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
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
    training.optimizer->zero_grad(to_none);
    lone(Place::before_backward, step);
    training.backward();
    lone(Place::before_optimizer, step);
    training.optimizer->step();
  }
}

void expect_errors_of_lone_backwards(Writes writes) {
  for (Place const place : {Place::before_zero_grad, Place::before_backward, Place::before_optimizer}) {
    for (Clears const clears : {Clears::neither, Clears::before, Clears::after}) {
      for (bool const to_none : {true, false}) {
        SCOPED_TRACE(text("place ", static_cast<int>(place), " clears ", static_cast<int>(clears), to_none));
        Training training(small_buckets(), writes);
        auto const messages =
            messages_of([&] { train_with_a_lone_backward(training, place, clears, to_none, 4); });
        auto const advice = text("put no_sync() around one of rank ", world().size() - 1, " alone");
        EXPECT_THAT(messages, Each(AllOf(HasSubstr("ranks are at different places of their loops"),
                                         HasSubstr(advice))));
        EXPECT_LE(training.wrapped.runtime().steps(), 3U) << "one after that of the lone one";
      }
    }
  }
}

TEST(LibtorchLoneBackward, R12R22IsAnErrorThatNamesItsRankOnEveryRankByTheNextStep) {
  if (world().size() == 1) GTEST_SKIP() << "takes two ranks";
  expect_errors_of_lone_backwards(Writes::counted);
}

TEST(LibtorchLoneBackward, R12R22IsTheSameErrorBesideAnOptimizerThatPyTorchDoesNotCount) {
  if (world().size() == 1) GTEST_SKIP() << "takes two ranks";
  if (world().device().kind == DeviceKind::cuda) GTEST_SKIP() << "is not noticed on a GPU";
  expect_errors_of_lone_backwards(Writes::uncounted);
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
  EXPECT_EQ(training.wrapped.runtime().steps(), 2U) << "nothing was averaged with it";
}

TEST(LibtorchLoneBackward, R22UnderNoSyncHarmsNothing) {
  for (Place const place : {Place::before_zero_grad, Place::before_backward}) {
    Training training;
    auto whole = copy_of(*training.net);
    for (int step = 0; step < 3; ++step) {
      for (Place const here : {Place::before_zero_grad, Place::before_backward}) {
        if (here == Place::before_backward) training.optimizer->zero_grad();
        if (here != place || world().rank() != 0) continue;
        auto const guard = training.wrapped.no_sync();
        training.backward();
        if (here == Place::before_backward) training.optimizer->zero_grad();
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
  for (Writes const writes : {Writes::counted, Writes::uncounted}) {
    for (bool const to_none : {true, false}) {
      Training training(small_buckets(), writes);
      for (int step = 0; step < 9; ++step) {
        if (step % 4 == 0) training.optimizer->zero_grad(to_none);
        training.backward();
        if (step % 3 == 0) training.optimizer->step();  // of others the update is skipped
      }
      EXPECT_EQ(training.wrapped.runtime().steps(), 9U);
    }
  }
}

// Different numbers of micro-steps; no zero_grad() on the rank that has no data.
TEST(LibtorchLoneBackward, R22RanksMayDoDifferentThingsUnderNoSyncAndWithoutData) {
  int const rank = world().rank().value();
  for (Writes const writes : {Writes::counted, Writes::uncounted}) {
    Training training(small_buckets(), writes);
    for (int step = 0; step < 8; ++step) {
      bool const idle = world().size() > 1 && rank == step % 4;
      training.wrapped.set_weight(idle ? 0 : 1);
      if (idle) {
        training.wrapped.synchronize();
      } else {
        if (step % 2 == 0) training.optimizer->zero_grad(step % 4 == 0);
        for (int micro = 0; micro < (rank + step) % 3; ++micro) {
          auto const guard = training.wrapped.no_sync();
          training.backward();
        }
        training.backward();
      }
      training.optimizer->step();
    }
    EXPECT_EQ(training.wrapped.runtime().steps(), 8U);
  }
}

enum class Has { a_frozen_layer, no_learning_rate, no_number, no_elements, values_elsewhere };

void train_six_steps_with(Has what) {
  auto const net = on_device(std::make_shared<TwoLayers>());
  if (what == Has::a_frozen_layer) {
    for (auto& parameter : net->first->parameters()) parameter.requires_grad_(false);
  }
  if (what == Has::no_elements) {
    net->register_parameter("none", torch::empty({0, 3}, random_rows(1, 1, 1).options()));
  }
  Wrapped wrapped(world(), *net, small_buckets());
  auto const optimizer = optimizer_of(*net, Writes::uncounted);
  if (what == Has::no_learning_rate) optimizer->param_groups()[0].options().set_lr(0);
  for (int step = 0; step < 6; ++step) {
    bool const is_alone = step == 2 && world().rank() == 0;  // behind a step without an update
    if (what == Has::no_number && step == 2) net->second->bias.data().fill_(std::nan(""));
    if (what == Has::values_elsewhere && is_alone)
      net->first->weight.set_data(net->first->weight.detach().clone());
    if (step % 3 == 0) optimizer->zero_grad(step == 0);
    loss_of(net->forward(shard(random_rows(12, 6, 1)))).backward();
    if (step % 2 == 0) optimizer->step();
  }
  EXPECT_EQ(wrapped.runtime().steps(), 6U);
}

TEST(LibtorchLoneBackward, R22LoopsWithAnOptimizerThatPyTorchDoesNotCountAreLegal) {
  for (Has const what : {Has::a_frozen_layer, Has::no_learning_rate, Has::no_number, Has::no_elements,
                         Has::values_elsewhere}) {
    SCOPED_TRACE(text("loop ", static_cast<int>(what)));
    train_six_steps_with(what);
  }
}

TEST(LibtorchLoneBackward, R11R22RanksThatJoinAreNoneThatDiffer) {
  auto options = small_buckets();
  options.runtime.uneven = ddp::DistributedDataParallelOptions::Uneven::divide_by_live;
  for (Writes const writes : {Writes::counted, Writes::uncounted}) {
    Training training(options, writes);
    for (int epoch = 0; epoch < 2; ++epoch) {
      for (int step = 0; step < 2 + world().rank().value(); ++step) {
        training.optimizer->zero_grad();
        training.backward();
        training.optimizer->step();
      }
      training.wrapped.join([&] { training.optimizer->step(); });
    }
  }
}

TEST(LibtorchLoneBackward, R22UpdatesOfBucketsAreNoneOfTheProgramsBetweenSteps) {
  for (Writes const writes : {Writes::counted, Writes::uncounted}) {
    Training training;
    training.wrapped.on_bucket_ready([writes](std::vector<torch::Tensor> const& parameters) {
      for (torch::Tensor const& parameter : parameters) {
        torch::Tensor values = writes == Writes::counted ? parameter : parameter.data();
        values.add_(parameter.grad(), -0.1);
      }
    });
    for (int step = 0; step < 4; ++step) {
      if (step % 2 == 0) training.net->zero_grad();
      training.backward();
    }
    if (world().size() == 1) continue;
    auto const messages = messages_of([&] {
      if (world().rank() == 0) training.backward();
      training.net->zero_grad();
      training.backward();
    });
    EXPECT_THAT(messages, Each(HasSubstr("rank 0 cleared no gradient")));
  }
}

}  // namespace
}  // namespace ddp::testing
