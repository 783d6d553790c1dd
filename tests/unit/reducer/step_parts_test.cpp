#include "reducer/parts/step_parts.hpp"

#include "support/models/reducer_parts.hpp"

namespace ddp::testing {
namespace {

using ::testing::HasSubstr;
using Options = DistributedDataParallelOptions;

TEST(StepParts, WhatNobodyAsksForDoesNotExist) {
  ReducerParts around;
  StepParts const parts(Options{}, around.state);
  EXPECT_EQ(parts.uneven, nullptr);
  EXPECT_EQ(parts.checks, nullptr);
  EXPECT_EQ(parts.replica_check, nullptr);
  EXPECT_EQ(parts.statistics, nullptr);
  EXPECT_EQ(parts.describe(), "unused zero, reduction average");
  EXPECT_EQ(parts.why_not_recorded(), "");
  EXPECT_FALSE(parts.may_refuse());
}

TEST(StepParts, R12WhatIsAskedForIsComparedBetweenRanks) {
  ReducerParts around;
  StepParts const parts({.reduction = Options::Reduction::sum,
                         .nonfinite = Options::Nonfinite::flag,
                         .verify_every = 10,
                         .uneven = Options::Uneven::divide_by_all,
                         .clip_norm = 0.1,
                         .statistics = true},
                        around.state);
  EXPECT_EQ(
      parts.describe(),
      "unused zero, reduction sum, uneven divide_by_all, nonfinite flag, clip_norm 0.10000000000000001, "
      "verify_every 10, statistics");
}

TEST(StepParts, R24EachPartSaysWhyItCannotBeRecorded) {
  for (auto const& [options, why] : std::vector<std::pair<Options, char const*>>{
           {{.unused = Options::Unused::error}, "Options::unused is error"},
           {{.nonfinite = Options::Nonfinite::error}, "Options::nonfinite is error"},
           {{.verify_every = 1}, "Options::verify_every is set"},
           {{.uneven = Options::Uneven::divide_by_live}, "Options::uneven is set"}}) {
    ReducerParts around;
    EXPECT_THAT(StepParts(options, around.state).why_not_recorded(), HasSubstr(why));
  }
}

TEST(StepParts, AClipNormThatIsNoNormIsRefused) {
  ReducerParts around;
  EXPECT_THAT(message_of([&] { StepParts({.clip_norm = -1}, around.state); }),
              HasSubstr("expected a finite number above 0"));
}

}  // namespace
}  // namespace ddp::testing
