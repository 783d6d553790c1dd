// R1, R6, R7, R8: which buckets may be launched.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "reducer/buckets/ready_tracker.hpp"

namespace ddp {
namespace {

// Four parameters in buckets {3, 2}, {1}, {0}.
BucketPlan plan() {
  std::vector<GradientSpec> const specs{
      {8, DType::f32, {}}, {8, DType::f32, {}}, {4, DType::f32, {}}, {4, DType::f32, {}}};
  return BucketPlan(specs, reverse_order(4), {Bytes{32}, Bytes{32}});
}

std::vector<std::uint32_t> const kOnce(4, 1U);

TEST(ReadyTracker, ABucketIsLaunchableWhenAllItsParametersAreMarked) {
  ReadyTracker tracker(plan(), kOnce);
  EXPECT_EQ(tracker.mark(3), ReadyTracker::Mark::accepted);
  EXPECT_EQ(tracker.launchable(), 0U);
  EXPECT_EQ(tracker.mark(2), ReadyTracker::Mark::accepted);
  EXPECT_EQ(tracker.launchable(), 1U);
}

TEST(ReadyTracker, R1BucketsAreLaunchedInPlanOrderWhateverTheOrderOfReadiness) {
  ReadyTracker tracker(plan(), kOnce);
  tracker.mark(0);
  tracker.mark(1);
  tracker.mark(2);
  EXPECT_EQ(tracker.launchable(), 0U) << "the first bucket still waits for parameter 3";
  tracker.mark(3);
  EXPECT_EQ(tracker.launchable(), 3U);
  auto const order = tracker.arrival_order();
  EXPECT_EQ(std::vector<std::size_t>(order.begin(), order.end()), (std::vector<std::size_t>{0, 1, 2, 3}));
}

TEST(ReadyTracker, R8AMarkTooManyIsADuplicate) {
  ReadyTracker tracker(plan(), kOnce);
  tracker.mark(1);
  EXPECT_EQ(tracker.mark(1), ReadyTracker::Mark::duplicate);
  std::vector<std::uint32_t> const twice{1, 2, 1, 1};
  tracker = ReadyTracker(plan(), twice);
  EXPECT_EQ(tracker.mark(1), ReadyTracker::Mark::accepted);
  EXPECT_TRUE(tracker.arrival_order().empty()) << "complete only with its second mark";
  EXPECT_EQ(tracker.mark(1), ReadyTracker::Mark::accepted);
  EXPECT_EQ(tracker.mark(1), ReadyTracker::Mark::duplicate);
}

TEST(ReadyTracker, R8UnknownCountsCompleteOnlyAtTheEnd) {
  std::vector<std::uint32_t> const unknown(4, 0U);
  ReadyTracker tracker(plan(), unknown);
  for (std::size_t p = 4; p-- > 0;) tracker.mark(p);
  tracker.mark(1);
  EXPECT_EQ(tracker.launchable(), 0U);
  EXPECT_EQ(tracker.marks(1), 2U);
  tracker.finish();
  EXPECT_EQ(tracker.launchable(), 3U);
}

TEST(ReadyTracker, R7UnmarkedParametersAreKnownAtTheEnd) {
  ReadyTracker tracker(plan(), kOnce);
  tracker.mark(3);
  tracker.mark_used(0);  // in a micro-step under no_sync
  tracker.finish();
  auto const used = tracker.used();
  EXPECT_EQ(std::vector<std::uint8_t>(used.begin(), used.end()), (std::vector<std::uint8_t>{1, 0, 0, 1}));
  EXPECT_EQ(tracker.launchable(), 3U);
  tracker.reset();
  EXPECT_EQ(tracker.launchable(), 0U);
  EXPECT_EQ(std::count(tracker.used().begin(), tracker.used().end(), 0), 4);
}

TEST(ReadyTracker, R7TheLastBucketWaitsForParametersWithoutElements) {
  std::vector<GradientSpec> const specs{{0, DType::f32, {}}, {8, DType::f32, {}}, {0, DType::f32, {}}};
  BucketPlan const with_empty_ones(specs, reverse_order(3), {Bytes{32}, Bytes{32}});
  ReadyTracker tracker(with_empty_ones, std::vector<std::uint32_t>(3, 1U));
  tracker.mark(2);
  tracker.mark(1);
  EXPECT_EQ(tracker.launchable(), 0U) << "what is sent with it would say that parameter 0 was not used";
  tracker.mark(0);
  EXPECT_EQ(tracker.launchable(), 1U);
  tracker.reset();
  tracker.mark(1);
  tracker.finish();
  EXPECT_EQ(tracker.launchable(), 1U) << "unused ones hold nothing up for longer than the step";
}

TEST(ReadyTracker, R7AParameterThatIsSkippedIsCompleteAndUnused) {
  std::vector<std::uint32_t> const unknown(4, 0U);
  for (auto const& expected : {kOnce, unknown}) {
    ReadyTracker tracker(plan(), expected);
    EXPECT_EQ(tracker.skip(2), ReadyTracker::Mark::accepted);
    EXPECT_EQ(tracker.skip(3), ReadyTracker::Mark::accepted);
    EXPECT_EQ(tracker.launchable(), 1U);
    EXPECT_TRUE(tracker.skipped(3));
    EXPECT_EQ(tracker.used()[3], 0U);
    EXPECT_EQ(tracker.marks(3), 0U);
    EXPECT_EQ(tracker.arrival_order().size(), 2U);
    EXPECT_EQ(tracker.skip(3), ReadyTracker::Mark::duplicate);
    EXPECT_EQ(tracker.mark(3), ReadyTracker::Mark::duplicate);
    tracker.mark(1);
    EXPECT_EQ(tracker.skip(1), ReadyTracker::Mark::duplicate);
    tracker.reset();
    EXPECT_FALSE(tracker.skipped(3));
    EXPECT_EQ(tracker.mark(3), ReadyTracker::Mark::accepted);
  }
}

TEST(ReadyTracker, R6MarksUnderNoSyncStartNoStep) {
  ReadyTracker tracker(plan(), kOnce);
  for (std::size_t p = 0; p < 4; ++p) tracker.mark_used(p);
  EXPECT_EQ(tracker.launchable(), 0U);
}

TEST(ReadyTracker, AnyOrderEndsWithAllBucketsAndNeverGoesBack) {
  std::mt19937 random(3);
  std::vector<GradientSpec> const specs(50, GradientSpec{30, DType::f32, {}});
  BucketPlan const large(specs, reverse_order(50), {Bytes{100}, Bytes{500}});
  ReadyTracker tracker(large, std::vector<std::uint32_t>(50, 1U));
  for (int round = 0; round < 50; ++round) {
    std::vector<std::size_t> order(50);
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::shuffle(order.begin(), order.end(), random);
    std::size_t last = 0;
    std::vector<bool> marked(50);
    for (std::size_t const p : order) {
      tracker.mark(p);
      marked[p] = true;
      ASSERT_GE(tracker.launchable(), last);
      last = tracker.launchable();
      for (std::size_t b = 0; b < last; ++b) {
        for (auto const& slice : large.buckets()[b].slices) ASSERT_TRUE(marked[slice.parameter]);
      }
    }
    ASSERT_EQ(tracker.launchable(), large.buckets().size());
    tracker.reset();
  }
}

}  // namespace
}  // namespace ddp
