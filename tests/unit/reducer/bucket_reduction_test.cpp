#include "reducer/buckets/bucket_reduction.hpp"

#include <stdexcept>

#include "support/models/reducer_parts.hpp"

namespace ddp::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(AllReduce, ABucketIsOneMessageAndTheLastOneTakesTheTailAlong) {
  ReducerParts parts;
  AllReduce reduction(parts.state);
  for (std::size_t b = 0; b < 2; ++b) parts.state.memory.fill(b, {.used = kAllUsed});
  EXPECT_EQ(reduction.end_of_run(0), 1U);
  reduction.reduce(0, 1, ReduceOp::average(), {});
  reduction.reduce(1, 2, ReduceOp::sum(), [&] { parts.communicator.barrier(parts.comm_stream); });
  EXPECT_THAT(parts.communicator.calls,
              ElementsAre("all_reduce f32[10] average", "(all_reduce f32[4] sum, barrier)"));
}

TEST(AllReduce, BucketsOfOneLargeParameterGoTogether) {
  ReducerParts parts;
  // Parameter 0 fills four buckets, parameter 1 a fifth.
  ToyModel model({16, 2});
  ReducerState state({"large", make_in_process_control(1).front(), {Rank{0}}, std::chrono::seconds(1)},
                     {{Device{}, &parts.communicator, parts.compute.get(), &parts.comm_stream}},
                     model.parameters(), {.bucket_bytes = Bytes{16}, .first_bucket_bytes = Bytes{16}});
  state.buckets.use(state.buckets.plan_for(std::vector<std::size_t>{0, 1}));
  state.memory.plan_changed(state.buckets.plan(), true);
  AllReduce const reduction(state);
  EXPECT_EQ(reduction.end_of_run(0), 4U);
}

TEST(HookReduction, R13GetsTheBucketAndTheTailFollows) {
  ReducerParts parts;
  std::size_t seen = 99;
  HookReduction reduction(parts.state, {"mine", [&](GradientBucket const& bucket) {
                                          seen = bucket.index;
                                          EXPECT_EQ(bucket.count, 2U);
                                          EXPECT_EQ(bucket.slices.size(), 1U);
                                        }});
  EXPECT_FALSE(reduction.may_send_sources());
  bool told = false;
  reduction.reduce(1, 2, ReduceOp::average(), [&] { told = true; });
  EXPECT_EQ(seen, 1U);
  EXPECT_TRUE(told);
  EXPECT_THAT(parts.communicator.calls, IsEmpty());
}

TEST(HookReduction, R13WhatItThrowsIsNamedWithBucketAndStep) {
  ReducerParts parts;
  parts.state.step.number = 5;
  HookReduction reduction(parts.state,
                          {"mine", [](GradientBucket const&) { throw std::runtime_error("bad day"); }});
  EXPECT_THAT(message_of([&] { reduction.reduce(0, 1, ReduceOp::average(), {}); }),
              HasSubstr("the comm hook \"mine\" threw at bucket 0 of synchronised step 5: bad day"));
}

}  // namespace
}  // namespace ddp::testing
