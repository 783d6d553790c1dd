#include "reducer/statistics/statistics.hpp"

#include "support/models/reducer_parts.hpp"

namespace ddp::testing {
namespace {

using ::testing::SizeIs;

TEST(Statistics, R20AStepIsReportedWithItsCountsOnceAllRanksHaveToldTheirTimes) {
  ReducerParts parts;
  std::vector<StepStatistics> reported;
  {
    Statistics statistics(parts.state);
    statistics.report_to([&](std::vector<StepStatistics> steps) {
      reported.insert(reported.end(), steps.begin(), steps.end());
    });
    statistics.plan_changed();
    for (; parts.state.step.number < 4; ++parts.state.step.number) {
      statistics.begin();
      for (std::size_t b = 0; b < 2; ++b) {
        statistics.before_bucket(b);
        statistics.after_bucket(b);
      }
      statistics.begin_wait();
      parts.end(statistics);
    }
    statistics.report_rest();
  }
  ASSERT_THAT(reported, SizeIs(4));
  EXPECT_EQ(reported[0].step, 0U);
  EXPECT_EQ(reported[3].step, 3U);
  EXPECT_EQ(reported[0].buckets, 2U);
  EXPECT_EQ(reported[0].messages, 2U);
  EXPECT_GE(reported[0].bytes.value, 12 * sizeof(float));
  ASSERT_THAT(reported[0].late_ms, SizeIs(2)) << "the made-up rank has told the same time";
  EXPECT_EQ(reported[0].late_ms[1], 0);
}

}  // namespace
}  // namespace ddp::testing
