// R20: what steps took, on every kind of device.
#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>

#include "parallel/ddp/reducer_access.hpp"
#include "support/models/device_toy.hpp"
#include "support/ranks/in_process_worlds.hpp"
#include "support/ranks/multi_process.hpp"

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

DistributedDataParallelOptions measured() {
  DistributedDataParallelOptions options{.bucket_bytes = 2000_B, .first_bucket_bytes = 500_B};
  options.statistics = true;
  return options;
}

// A wrapped model whose steps are measured.
class Measured {
 public:
  explicit Measured(DistributedDataParallelOptions const& options = measured(), World const& here = world())
      : world_(here), model_(here, kCounts), ddp_(std::in_place, here, model_.parameters(), options) {
    reducer_of(*ddp_).report_statistics([this](std::vector<StepStatistics> steps) {
      for (StepStatistics& each : steps) seen_.push_back(std::move(each));
    });
  }
  [[nodiscard]] DistributedDataParallel* operator->() { return &*ddp_; }

  /// Gradients come in the order of their parameters. Then the host waits, as reading the loss does, so no
  /// step is left out.
  void step() {
    ddp_->gradient_ready(0);
    step_rest();
  }
  /// The same without the first gradient, which was marked already.
  void step_rest() {
    for (std::size_t p = 1; p < kCounts.size(); ++p) ddp_->gradient_ready(p);
    ddp_->synchronize();
    world_.stream().synchronize();
  }
  /// Ends the wrapper. What its steps took; on a GPU without the first one, after which buckets are rebuilt.
  [[nodiscard]] std::vector<StepStatistics> const& end() {
    ddp_.reset();
    return seen_;
  }

 private:
  World world_;
  DeviceToy<float> model_;
  std::vector<StepStatistics> seen_;
  std::optional<DistributedDataParallel> ddp_;
};

// Parts of a bucket begin at aligned places.
bool is_about(Bytes bytes, std::size_t of_elements) {
  return bytes.value >= of_elements && bytes.value <= of_elements + kCounts.size() * BucketPlan::kAlignment;
}

TEST(StepStatistics, R20CountsWhatWasSentAndInWhichOrder) {
  Measured ddp;
  std::size_t const buckets_at_first = ddp->plan().buckets().size();
  for (int step = 0; step < 12; ++step) ddp.step();
  std::size_t const buckets = ddp->plan().buckets().size();
  auto const& seen = ddp.end();
  ASSERT_THAT(seen, SizeIs(::testing::Ge(11U)));
  for (std::size_t i = 0; i < seen.size(); ++i) {
    StepStatistics const& each = seen[i];
    EXPECT_EQ(each.step, i + (12 - seen.size()));
    EXPECT_TRUE(is_about(each.bytes, 4 * (1000 + 200 + 30)));
    EXPECT_THAT(each.order, ElementsAre(0, 1, 2));
    EXPECT_EQ(each.rebuilds, each.step == 0 ? 0 : 1);
    EXPECT_EQ(each.messages, each.buckets);
    EXPECT_EQ(each.buckets, each.step == 0 ? buckets_at_first : buckets);
    EXPECT_GE(each.backward_ms, 0);
    EXPECT_GT(each.communication_ms, 0);
    EXPECT_GE(each.exposed_ms, 0);
    ASSERT_EQ(each.step_ms.has_value(), each.step > 1) << "buckets are rebuilt after the first step";
    if (each.step_ms) {
      EXPECT_NEAR(*each.step_ms, *each.forward_ms + each.backward_ms + each.exposed_ms, 0.01);
    }
  }
  // Ranks have told each other of all but the last few; of those that are compared one waited longest, and so
  // nobody waited for it.
  for (std::size_t i = 1; i + 4 < seen.size(); ++i) {
    ASSERT_THAT(seen[i].late_ms, SizeIs(size())) << "step " << seen[i].step;
    EXPECT_THAT(seen[i].late_ms, Each(::testing::Ge(0.0)));
    EXPECT_EQ(*std::ranges::min_element(seen[i].late_ms), 0.0);
  }
}

TEST(StepStatistics, R20BytesAreThoseThatTravel) {
  DistributedDataParallelOptions options = measured();
  options.reduce_dtype = DType::bf16;
  Measured ddp(options);
  for (int step = 0; step < 3; ++step) ddp.step();
  ASSERT_FALSE(ddp.end().empty());
  EXPECT_TRUE(is_about(ddp.end().back().bytes, 2 * (1000 + 200 + 30)));
}

// Sleeps stand for work; on a GPU it is the stream that has nothing to do meanwhile. What the host enqueues
// before a sleep reaches the GPU a little later, hence the margins.
TEST(StepStatistics, R20TellsForwardAndBackwardApart) {
  for (bool const says : {false, true}) {
    Measured ddp;
    for (int step = 0; step < 2; ++step) ddp.step();
    std::this_thread::sleep_for(60ms);  // data are read
    if (says) ddp->begin_forward();
    std::this_thread::sleep_for(60ms);
    ddp->gradient_ready(0);
    std::this_thread::sleep_for(40ms);
    ddp.step_rest();
    StepStatistics const& last = ddp.end().back();
    ASSERT_EQ(last.step, 2U);
    ASSERT_TRUE(last.step_ms && last.forward_ms);
    EXPECT_GE(*last.forward_ms, says ? 30 : 90);
    EXPECT_GE(last.backward_ms, 20);
    EXPECT_GE(*last.step_ms, *last.forward_ms + last.backward_ms + (says ? 30 : 0));
  }
}

// Waiting for a late rank is exposed time of the others, not their backward pass.
TEST(StepStatistics, R20NamesTheRankThatOthersWaitFor) {
  constexpr int kSteps = 12;
  constexpr double kLate = 30.0 * (kSteps - 5);  // of the steps that ranks have told of, with room for two
  Measured ddp;
  int const slow = world().size() - 1;
  for (int step = 0; step < kSteps; ++step) {
    if (me() == slow) std::this_thread::sleep_for(30ms);
    ddp.step();
  }
  std::vector<double> late(size());
  double exposed = 0;
  double backward = 0;
  std::string of_step_5;
  for (StepStatistics const& each : ddp.end()) {
    for (std::size_t r = 0; r < each.late_ms.size(); ++r) late[r] += each.late_ms[r];
    if (each.step == 5) of_step_5 = ::testing::PrintToString(each.late_ms);
    exposed += each.exposed_ms;
    backward += each.backward_ms;
  }
  EXPECT_THAT(gathered(of_step_5), Each(of_step_5)) << "every rank has the same words of all";
  EXPECT_THAT(of_step_5, ::testing::Not(""));
  if (world().size() == 1) return;
  EXPECT_EQ(std::ranges::max_element(late) - late.begin(), slow);
  EXPECT_GT(late[static_cast<std::size_t>(slow)], kLate / 2);
  if (me() != slow) {
    EXPECT_GT(exposed, kLate / 2);
    EXPECT_LT(backward, exposed);
  }
}

TEST(StepStatistics, R20TheProgramHasThoseOfAFewStepsAgo) {
  DeviceToy<float> model(world(), kCounts);
  DistributedDataParallel ddp(world(), model.parameters(), measured());
  EXPECT_FALSE(ddp.statistics().has_value());
  for (int step = 0; step < 20; ++step) {
    for (std::size_t p = 0; p < kCounts.size(); ++p) ddp.gradient_ready(p);
    ddp.synchronize();
    world().stream().synchronize();
  }
  auto const newest = ddp.statistics();
  ASSERT_TRUE(newest.has_value());
  EXPECT_GE(newest->step, 12U);
  EXPECT_THAT(newest->late_ms, SizeIs(size()));
}

TEST(StepStatistics, R20GoOnWhileRanksRunOutOfData) {
  DistributedDataParallelOptions options = measured();
  options.uneven = DistributedDataParallelOptions::Uneven::divide_by_live;
  std::uint64_t const steps = 6 * size() + 94;  // of the last rank
  Measured ddp(options);
  for (std::uint64_t step = 0; step < (me() + 1 == world().size() ? steps : 6); ++step) ddp.step();
  ddp->join([] { world().stream().synchronize(); });
  auto const& seen = ddp.end();
  ASSERT_GE(seen.size(), steps - 1) << "none is left out";
  EXPECT_EQ(seen.back().step, steps - 1);
  EXPECT_THAT(seen[50].late_ms, SizeIs(size()));
}

TEST(StepStatistics, R20OfASubGroupAreOfItsRanks) {
  std::vector<Rank> const first{Rank{0}};
  auto const part = world().subgroup(me() == 0 ? first : std::vector<Rank>{});
  if (part) {
    Measured ddp(measured(), *part);
    for (int step = 0; step < 6; ++step) ddp.step();
    ASSERT_GE(ddp.end().size(), 5U);
    EXPECT_THAT(ddp.end()[2].late_ms, ElementsAre(0.0));
  }
}

TEST(StepStatistics, R20OfOneRankOnlyAreRefusedOnEveryRank) {
  if (world().size() == 1) GTEST_SKIP() << "one rank differs from nobody";
  DeviceToy<float> model(world(), kCounts);
  DistributedDataParallelOptions options = measured();
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
