// R20: what steps took, on every kind of device.
#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <thread>

#include "support/device_toy.hpp"
#include "support/in_process_worlds.hpp"
#include "support/multi_process.hpp"

namespace ddp::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

std::vector<std::size_t> const kCounts{1000, 200, 30};
int me() { return world().rank().value(); }
auto size() { return static_cast<std::size_t>(world().size()); }

ReducerOptions measured() {
  ReducerOptions options{.bucket_bytes = 2000_B, .first_bucket_bytes = 500_B};
  options.statistics = true;
  return options;
}

// A step whose gradients come in the order of their parameters.
void step_forwards(DistributedDataParallel& ddp) {
  for (std::size_t p = 0; p < kCounts.size(); ++p) ddp.gradient_ready(p);
  ddp.synchronize();
}

// Parts of a bucket begin at aligned places.
bool is_about(Bytes bytes, std::size_t of_elements) {
  return bytes.value >= of_elements && bytes.value <= of_elements + kCounts.size() * BucketPlan::kAlignment;
}

// What is known once the device has done everything.
std::vector<StepStatistics> rest_of(DistributedDataParallel& ddp) {
  world().stream().synchronize();
  return ddp.reducer().take_statistics(true);
}

TEST(StepStatistics, R20CountsWhatWasSentAndInWhichOrder) {
  DeviceToy<float> model(world(), kCounts);
  DistributedDataParallel ddp(world(), model.parameters(), measured());
  std::size_t const buckets_at_first = ddp.reducer().plan().buckets().size();
  std::vector<StepStatistics> seen;
  for (std::uint64_t step = 0; step < 12; ++step) {
    for (std::size_t p = 0; p < kCounts.size(); ++p) ddp.reducer().gradient_ready(p);
    ddp.reducer().synchronize();
    for (auto& each : ddp.reducer().take_statistics()) seen.push_back(std::move(each));
    world().stream().synchronize();  // as reading the loss does: nothing is left out
  }
  for (auto& each : rest_of(ddp)) seen.push_back(std::move(each));
  ASSERT_THAT(seen, SizeIs(::testing::Ge(11U)));
  for (std::size_t i = 0; i < seen.size(); ++i) {
    StepStatistics const& each = seen[i];
    EXPECT_EQ(each.step, i + (12 - seen.size()));
    EXPECT_TRUE(is_about(each.bytes, 4 * (1000 + 200 + 30)));
    EXPECT_THAT(each.order, ElementsAre(0, 1, 2));
    EXPECT_EQ(each.rebuilds, each.step == 0 ? 0 : 1);
    EXPECT_EQ(each.messages, each.buckets);
    EXPECT_EQ(each.buckets, each.step == 0 ? buckets_at_first : ddp.reducer().plan().buckets().size());
    EXPECT_GE(each.backward_ms, 0);
    EXPECT_GE(each.exposed_ms, 0);
    EXPECT_GT(each.communication_ms, 0);
  }
  // Ranks have told each other of all but the last few, and the one that waited longest for itself waited for
  // nobody.
  for (std::size_t i = 1; i + 4 < seen.size(); ++i) {
    ASSERT_THAT(seen[i].late_ms, SizeIs(size())) << "step " << seen[i].step;
    EXPECT_THAT(seen[i].late_ms, Each(::testing::Ge(0.0)));
    EXPECT_EQ(*std::ranges::min_element(seen[i].late_ms), 0.0);
  }
}

TEST(StepStatistics, R20BytesAreThoseThatTravel) {
  DeviceToy<float> model(world(), kCounts);
  ReducerOptions options = measured();
  options.reduce_dtype = DType::bf16;
  DistributedDataParallel ddp(world(), model.parameters(), options);
  for (int step = 0; step < 3; ++step) step_forwards(ddp);
  auto const seen = rest_of(ddp);
  ASSERT_FALSE(seen.empty());
  EXPECT_TRUE(is_about(seen.back().bytes, 2 * (1000 + 200 + 30)));
}

// Sleeps stand for work; on a GPU it is the stream that has nothing to do meanwhile.
TEST(StepStatistics, R20TellsForwardAndBackwardApart) {
  DeviceToy<float> model(world(), kCounts);
  DistributedDataParallel ddp(world(), model.parameters(), measured());
  for (int step = 0; step < 2; ++step) step_forwards(ddp);
  world().stream().synchronize();
  for (bool const says : {false, true}) {
    static_cast<void>(ddp.reducer().take_statistics(true));
    std::this_thread::sleep_for(30ms);  // data are read
    if (says) ddp.begin_forward();
    std::this_thread::sleep_for(20ms);
    ddp.reducer().gradient_ready(0);
    std::this_thread::sleep_for(10ms);
    ddp.reducer().gradient_ready(1);
    ddp.reducer().gradient_ready(2);
    ddp.reducer().synchronize();
    auto const seen = rest_of(ddp);
    ASSERT_THAT(seen, SizeIs(1));
    ASSERT_TRUE(seen[0].forward_ms.has_value());
    EXPECT_GE(*seen[0].forward_ms, says ? 19 : 49);
    if (says) {
      EXPECT_LT(*seen[0].forward_ms, 49);
    }
    EXPECT_GE(seen[0].backward_ms, 9);
  }
}

TEST(StepStatistics, R20NamesTheRankThatOthersWaitFor) {
  DeviceToy<float> model(world(), kCounts);
  DistributedDataParallel ddp(world(), model.parameters(), measured());
  EXPECT_FALSE(ddp.statistics().has_value());
  int const slow = world().size() - 1;
  for (int step = 0; step < 12; ++step) {
    if (me() == slow) std::this_thread::sleep_for(30ms);
    step_forwards(ddp);
    world().stream().synchronize();
  }
  auto const newest = ddp.statistics();
  ASSERT_TRUE(newest.has_value());
  EXPECT_GE(newest->step, 8U);
  ASSERT_THAT(newest->late_ms, SizeIs(size()));
  if (world().size() == 1) {
    EXPECT_THAT(newest->late_ms, ElementsAre(0.0));
    return;
  }
  auto const latest = std::ranges::max_element(newest->late_ms);
  EXPECT_EQ(latest - newest->late_ms.begin(), slow);
  EXPECT_GT(*latest, 15);
  // Every rank has the same words of all.
  std::vector<std::string> const all = gathered(::testing::PrintToString(newest->late_ms));
  EXPECT_THAT(all, Each(all[0]));
}

TEST(StepStatistics, R20GoOnWhileRanksRunOutOfData) {
  DeviceToy<float> model(world(), kCounts);
  ReducerOptions options = measured();
  options.uneven = ReducerOptions::Uneven::divide_by_live;
  DistributedDataParallel ddp(world(), model.parameters(), options);
  for (int step = 0; step < 6 + 6 * me(); ++step) {
    step_forwards(ddp);
    world().stream().synchronize();
  }
  ddp.join([&] { world().stream().synchronize(); });
  auto const seen = rest_of(ddp);
  ASSERT_FALSE(seen.empty());
  EXPECT_EQ(seen.back().step, 6 + 6 * size() - 7);
}

TEST(StepStatistics, R20OfOneRankOnlyAreRefusedOnEveryRank) {
  if (world().size() == 1) GTEST_SKIP() << "one rank differs from nobody";
  DeviceToy<float> model(world(), kCounts);
  ReducerOptions options = measured();
  options.statistics = me() == 0;
  auto const messages =
      gathered(message_of([&] { DistributedDataParallel const ddp(world(), model.parameters(), options); }));
  EXPECT_THAT(messages, Each(messages[0]));
  EXPECT_THAT(messages[0], HasSubstr(", statistics, "));
}

TEST(StepStatistics, R20WithoutTheOptionAreAnErrorThatSaysHow) {
  DeviceToy<float> model(world(), kCounts);
  DistributedDataParallel ddp(world(), model.parameters());
  ddp.begin_forward();
  EXPECT_THAT(message_of([&] { static_cast<void>(ddp.statistics()); }), HasSubstr("DDP_STATISTICS"));
}

}  // namespace
}  // namespace ddp::testing
