// R13 and R15: what a program gave for a bucket, and what does not return, on one rank.
#include <gmock/gmock.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "ddp/comm/factory.hpp"
#include "ddp/core/text.hpp"
#include "support/models/own_reducer.hpp"
#include "support/ranks/in_process_worlds.hpp"

namespace ddp::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr auto kDeadline = 1s;
// Waits as if for ever: much longer than others wait for it, and no longer than a test may take.
constexpr auto kForEver = 3s;

std::unique_ptr<Communicator> with_a_short_deadline() {
  return make_communicator(world().shared_control(), world().next_name("short"), all_ranks(world().size()),
                           world().device(), {.timeout = kDeadline, .init_timeout = 60s});
}

// The last rank calls `wait` in its second step, which every rank must hear of, the others before it is
// through.
void expect_told_at_the_deadline(std::function<void(OwnReducer&, std::function<void()> wait)> const& give) {
  if (world().size() == 1) GTEST_SKIP() << "nobody waits for the only rank";
  int const odd = world().size() - 1;
  DeviceToy<float> model(world(), {1500, 3, 700});
  OwnReducer reducer(model, {.bucket_bytes = 2000_B, .first_bucket_bytes = 500_B}, with_a_short_deadline());
  give(reducer, [&] {
    if (world().rank().value() == odd && reducer->steps() == 1) std::this_thread::sleep_for(kForEver);
  });
  reducer.train();
  reducer.wait();
  world().barrier();
  auto const begin = std::chrono::steady_clock::now();
  std::string const mine = message_of([&] {
    reducer.train();
    reducer.wait();
  });
  auto const took = std::chrono::steady_clock::now() - begin;
  if (world().rank().value() == odd) {
    EXPECT_LT(took, kForEver + kDeadline);
  } else {
    EXPECT_LT(took, kForEver - 500ms) << "heard of it only when it was through";
  }
  auto const messages = gathered(mine);
  EXPECT_THAT(messages, Each(AllOf(HasSubstr(text("rank ", odd)), HasSubstr("all_reduce"))));
  EXPECT_THAT(messages[0], AnyOf(HasSubstr("waited 1 s"), HasSubstr("1.0 s")));
  // A GPU's communicator has failed, which the reducer hears of when it sends a bucket.
  EXPECT_THAT(message_of([&] { reducer.train(); }),
              AnyOf(HasSubstr("cannot be used any more"), HasSubstr(text("for rank ", odd))));
}

TEST(CommHook, R13ThatWaitsOnOneRankIsToldToAllAtTheirDeadline) {
  expect_told_at_the_deadline([](OwnReducer& reducer, std::function<void()> const& wait) {
    reducer->set_comm_hook({"slow", [wait](GradientBucket const& bucket) {
                              if (bucket.index == 1) wait();
                              for (TensorView const& gradients : bucket.gradients) {
                                bucket.communicator.all_reduce(gradients, bucket.op, bucket.stream);
                              }
                            }});
  });
}

TEST(BucketReady, R15ThatWaitsOnOneRankIsToldToAllAtTheirDeadline) {
  expect_told_at_the_deadline([](OwnReducer& reducer, std::function<void()> const& wait) {
    reducer->on_bucket_ready([wait](ReducedBucket const& bucket) {
      if (bucket.index == 0) wait();
    });
  });
}

}  // namespace
}  // namespace ddp::testing
