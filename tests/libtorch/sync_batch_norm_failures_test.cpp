// What SyncBatchNorm refuses, and what ranks that wait in one hear of each other's failures.
#include <chrono>
#include <latch>
#include <stdexcept>
#include <thread>
#include <utility>

#include "libtorch/normalised_models.hpp"
#include "support/ranks/in_process_worlds.hpp"

namespace ddp::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

// The messages of calls until one fails: on a GPU a call returns before its operation does.
template <class Call>
std::vector<std::string> messages_until_failure(Call call) {
  return messages_of([&] {
    call();
    for (int i = 0; i < 200 && world().device().kind == DeviceKind::cuda; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      call();
    }
  });
}

TEST(LibtorchSyncBatchNorm, R22DifferentChannelsAreAnErrorOnEveryRank) {
  if (world().size() == 1) GTEST_SKIP() << "takes two ranks";
  std::int64_t const channels = rank() == 1 ? 5 : 4;
  SyncBatchNorm norm(world(), channels);
  norm->to(libtorch::device(world()));
  auto const x = random({3, channels}, 1);
  auto const messages = messages_until_failure([&] { norm(x); });
  EXPECT_THAT(messages, Each(AllOf(HasSubstr("all_gather"), Not(HasSubstr("timeout")))));
}

TEST(LibtorchSyncBatchNorm, R22ARankThatSkipsAModuleIsAnErrorOnEveryRank) {
  if (world().size() == 1) GTEST_SKIP() << "takes two ranks";
  SyncBatchNorm first(world(), 4);
  SyncBatchNorm second(world(), 6);
  first->to(libtorch::device(world()));
  second->to(libtorch::device(world()));
  auto const x = random({3, 4}, 1);
  auto const z = random({3, 6}, 1);
  auto const messages = messages_until_failure([&] {
    if (rank() != 0) first(x);
    second(z);
  });
  EXPECT_THAT(messages, Each(HasSubstr("all_gather")));
  SyncBatchNorm fresh(world(), 4);  // what failed is not shared any more
  fresh->to(libtorch::device(world()));
  EXPECT_EQ(fresh(x).sizes(), x.sizes());
}

TEST(LibtorchSyncBatchNorm, R22AForwardPassOfOneRankAloneIsAnErrorThatNamesTheModule) {
  if (world().size() == 1) GTEST_SKIP() << "takes two ranks";
  auto net = std::make_shared<SyncNet>(SyncBatchNorm(world(), 4));
  Wrapped wrapped(world(), *net);
  // CUDA loads kernels at their first launch, and would wait for those that run.
  loss_of(net->forward(random_rows(4, 50, 1))).backward();
  bool samples = rank() == 0;
  auto const messages = messages_until_failure([&] {
    if (std::exchange(samples, false)) {
      torch::NoGradGuard const no_graph;
      net->forward(random_rows(4, 50, 2));
    }
    loss_of(net->forward(random_rows(4, 50, 1))).backward();
  });
  EXPECT_THAT(messages,
              Each(AllOf(HasSubstr("SyncBatchNorm \"norm\" takes every rank"), HasSubstr("eval()"))));
}

TEST(LibtorchSyncBatchNorm, R22AForwardPassThatARankNeverMakesTimesOut) {
  auto worlds = World::in_process(2, {.timeout = std::chrono::milliseconds(300)});
  std::vector<std::string> messages(2);
  std::latch over(1);
  run_ranks(2, [&](int r) {
    World const& here = worlds[static_cast<std::size_t>(r)];
    SyncBatchNorm norm(here, 4);
    if (r == 1) {
      over.wait();
      return;
    }
    try {
      norm(torch::ones({3, 4}));
    } catch (CommError const& error) {
      messages[0] = error.what();
    }
    over.count_down();
  });
  EXPECT_THAT(messages[0], AllOf(HasSubstr("all_gather"), HasSubstr("rank 1")));
}

// Behind the head, whose gradients have been given; the others wait in the normalisation before it.
TEST(LibtorchSyncBatchNorm, R22AnExceptionInBackwardReachesRanksThatWaitForStatistics) {
  if (world().size() == 1) GTEST_SKIP() << "takes two ranks";
  auto net = std::make_shared<SyncNet>(SyncBatchNorm(world(), 4));
  Wrapped wrapped(world(), *net, small_buckets());
  auto const begin = std::chrono::steady_clock::now();
  auto const messages = messages_of([&] {
    auto hidden = torch::relu(net->norm(net->conv(random_rows(4, 50, 1).view({-1, 2, 5, 5}))));
    if (rank() == 0) hidden = Throws::apply(hidden);
    loss_of(net->head(hidden.mean({2, 3}))).backward();
  });
  EXPECT_THAT(messages, Each(HasSubstr("the data of this rank is broken")));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20)) << "a deadline ended it";
  auto const later = messages_until_failure([&] { net->forward(random_rows(4, 50, 1)); });
  EXPECT_THAT(later, Each(HasSubstr("the data of this rank is broken")));
}

TEST(LibtorchSyncBatchNorm, R22WhatItCannotNormaliseIsRefusedBeforeAnythingIsSent) {
  SyncBatchNorm norm(world(), 4);
  norm->to(libtorch::device(world()));
  EXPECT_THAT(message_of([&] { norm(random({3, 5}, 1)); }), HasSubstr("[N, 4, …], found [3, 5]"));
  EXPECT_THAT(message_of([&] { norm(random({4}, 1)); }), HasSubstr("[N, 4, …], found [4]"));
  EXPECT_THAT(message_of([&] { norm(torch::ones({3, 4}, torch::kLong)); }), HasSubstr("found Long"));
  EXPECT_THAT(message_of([&] { norm(torch::ones({3, 4}, torch::kMeta)); }), HasSubstr("found one on meta"));
  EXPECT_EQ(norm(random({3, 4}, 1)).size(0), 3);
}

TEST(LibtorchSyncBatchNorm, R22GradientsOfGradientsAreRefused) {
  if (world().size() == 1) GTEST_SKIP() << "BatchNorm's own gradient has a graph";
  SyncBatchNorm norm(world(), 4);
  norm->to(libtorch::device(world()));
  auto const x = random({3, 4}, 1).requires_grad_();
  auto const y = loss_of(norm(x));
  EXPECT_THAT(message_of([&] { torch::autograd::grad({y}, {x}, {}, true, /*create_graph=*/true); }),
              HasSubstr("create_graph"));
  EXPECT_TRUE(torch::autograd::grad({y}, {x})[0].defined());
}

}  // namespace
}  // namespace ddp::testing
