// What travels while a backward pass still runs (P8): the plan, and the order on streams.
#include "data_parallel/replicas/backward_progress.hpp"

#include <gmock/gmock.h>

#include <chrono>
#include <future>
#include <stdexcept>

#include "ddp/device/memory.hpp"

namespace ddp::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Optional;

constexpr Bytes kSmallTensor{64};
constexpr auto kDeadline = std::chrono::seconds(30);

FlatLayout layout_of(std::vector<std::size_t> const& counts, DType dtype = DType::f32) {
  std::vector<TensorView> tensors;
  for (std::size_t const count : counts) tensors.push_back({nullptr, Shape{count}, dtype, Device{}});
  return FlatLayout(tensors, kSmallTensor);
}

std::shared_ptr<BackwardPlan const> plan_of(std::vector<std::size_t> const& counts, Bytes bytes = Bytes{1}) {
  return std::make_shared<BackwardPlan const>(layout_of(counts), bytes);
}

TEST(BackwardPlan, P8LastTensorsTravelFirstAndWhatSmallOnesShareLast) {
  // Messages: 0 = tensor 0, 1 = tensors 1 and 3, which are small, 2 = tensor 2, 3 = tensor 4.
  BackwardPlan const plan(layout_of({100, 2, 100, 3, 100}), Bytes{800});
  ASSERT_EQ(plan.buckets.size(), 3U);
  EXPECT_THAT(plan.buckets[0].messages, ElementsAre(3, 2)) << "400 B each, closed at 800";
  EXPECT_THAT(plan.buckets[1].messages, ElementsAre(0));
  EXPECT_THAT(plan.buckets[2].messages, ElementsAre(1));
  EXPECT_TRUE(plan.buckets[2].packed);
  EXPECT_FALSE(plan.buckets[0].packed || plan.buckets[1].packed);
  EXPECT_THAT(plan.bucket_of,
              ElementsAre(Optional(1U), std::nullopt, Optional(0U), std::nullopt, Optional(0U)));
  EXPECT_THAT(plan.parameters_in, ElementsAre(2, 1, 0));
}

TEST(BackwardPlan, P8BucketsAreAsLargeAsTheReducersUntilTheyWouldBeMany) {
  EXPECT_EQ(bucket_bytes(layout_of({100})), 25_MiB);
  std::vector<std::size_t> const many(2000, std::size_t{25} << 18);  // 25 MiB each
  EXPECT_GT(bucket_bytes(layout_of(many)), 300_MiB);
  EXPECT_LE(BackwardPlan(layout_of(many), bucket_bytes(layout_of(many))).buckets.size(), 128U);
}

TEST(BackwardPlan, P8WithoutElementsNothingTravels) {
  BackwardPlan const plan(layout_of({0, 0}), Bytes{1});
  EXPECT_THAT(plan.buckets, IsEmpty());
  EXPECT_THAT(plan.bucket_of, ElementsAre(std::nullopt, std::nullopt));
  BackwardProgress progress(std::make_shared<BackwardPlan const>(plan), Device{});
  HostStream stream;
  progress.begin();
  progress.ready(1, stream);
  progress.end(stream);
}

// Two parameters; work in front of each gradient; what messages find.
struct TwoGradients {
  explicit TwoGradients(std::shared_ptr<BackwardPlan const> plan = plan_of({100, 100}))
      : progress(std::move(plan), Device{}) {
    progress.begin();
  }
  // The backward pass writes gradient `parameter`.
  void write(std::size_t parameter, int value) {
    compute.enqueue([this, parameter, value] { gradients[parameter] = value; });
  }
  // It gets there only when `gate` is open.
  void wait_for_gate() {
    compute.enqueue([this] {
      if (opened.wait_for(kDeadline) != std::future_status::ready) throw std::runtime_error("never opened");
    });
  }
  void read(std::size_t bucket, std::size_t parameter) {
    progress.block(bucket, messages);
    messages.enqueue([this, parameter] { found[parameter] = gradients[parameter]; });
  }
  void synchronize() {
    messages.synchronize();
    compute.synchronize();
  }

  int gradients[2] = {0, 0};
  int found[2] = {-1, -1};
  std::promise<void> gate;
  std::future<void> opened = gate.get_future();
  BackwardProgress progress;
  HostStream compute;
  HostStream messages;
};

TEST(BackwardProgress, P8ABucketTravelsWhileTheBackwardPassStillRuns) {
  TwoGradients pass;
  pass.write(1, 7);
  pass.progress.ready(1, pass.compute);
  pass.wait_for_gate();
  pass.write(0, 8);
  pass.progress.ready(0, pass.compute);
  pass.progress.end(pass.compute);
  pass.read(0, 1);
  pass.messages.enqueue(
      [gate = &pass.gate] { gate->set_value(); });  // only a bucket that does not wait gets here
  pass.read(1, 0);
  pass.synchronize();
  EXPECT_THAT(pass.found, ElementsAre(8, 7));
}

TEST(BackwardProgress, P8AGradientThatNobodySpokeOfIsCompleteBehindThePass) {
  TwoGradients pass;
  pass.progress.ready(1, pass.compute);
  pass.wait_for_gate();
  pass.write(0, 5);
  pass.progress.end(pass.compute);
  pass.read(1, 0);
  pass.gate.set_value();
  pass.synchronize();
  EXPECT_EQ(pass.found[0], 5);
}

TEST(BackwardProgress, P8WhatSmallTensorsShareWaitsForTheEndOfThePass) {
  TwoGradients pass(plan_of({1, 1}));
  pass.progress.ready(1, pass.compute);
  pass.progress.ready(0, pass.compute);
  pass.wait_for_gate();
  pass.write(1, 9);  // as it is copied into the message
  pass.progress.end(pass.compute);
  pass.read(0, 1);
  pass.gate.set_value();
  pass.synchronize();
  EXPECT_EQ(pass.found[1], 9);
}

TEST(BackwardProgress, P8SaidAgainItCountsFromThenOn) {
  TwoGradients pass(plan_of({100, 100}, Bytes{1000}));  // one bucket
  pass.progress.ready(1, pass.compute);
  pass.progress.ready(0, pass.compute);
  pass.wait_for_gate();
  pass.write(1, 3);
  pass.progress.ready(1, pass.compute);
  pass.progress.end(pass.compute);
  pass.read(0, 1);
  pass.gate.set_value();
  pass.synchronize();
  EXPECT_EQ(pass.found[1], 3);
}

TEST(BackwardProgress, P8APassThatFailedHalfWayLeavesNothingReady) {
  TwoGradients pass(plan_of({100, 100}, Bytes{1000}));
  pass.progress.ready(1, pass.compute);
  pass.progress.begin();  // the next one
  pass.wait_for_gate();
  pass.write(1, 4);
  pass.progress.ready(0, pass.compute);
  pass.progress.ready(1, pass.compute);
  pass.progress.end(pass.compute);
  pass.read(0, 1);
  pass.gate.set_value();
  pass.synchronize();
  EXPECT_EQ(pass.found[1], 4);
}

TEST(BackwardProgress, P8WhoWaitsBehindWorkThatFailedDoesNotWaitForEver) {
  TwoGradients pass;
  pass.compute.enqueue([] { throw std::runtime_error("no gradient"); });
  pass.progress.end(pass.compute);
  pass.read(0, 1);
  pass.messages.synchronize();
  EXPECT_THROW(pass.compute.synchronize(), std::runtime_error);
}

}  // namespace
}  // namespace ddp::testing
