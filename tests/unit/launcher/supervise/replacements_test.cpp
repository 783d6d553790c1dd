// Which lost ranks get a new process, and when (R26).
#include "launcher/supervise/replacements.hpp"

#include <gmock/gmock.h>

#include <chrono>

namespace ddp::launcher {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

RankOutcome lost_one(int replacement, bool made_steps) {
  RankOutcome lost;
  lost.replacement = replacement;
  if (made_steps) lost.progress = Progress{7};
  return lost;
}

TEST(Replacements, R26ALostRankGetsANewProcessWhenTheOthersHaveGoneOnUntilAllAreUsed) {
  Replacements replacements(2);
  auto const now = Replacements::Clock::now();
  EXPECT_EQ(replacements.lose(3, lost_one(0, true), now), "");
  EXPECT_EQ(replacements.next(), std::nullopt) << "the job may end with it";
  replacements.others_went_on(now);
  EXPECT_EQ(replacements.next(), now);
  EXPECT_EQ(replacements.take_due(now), 3U);
  EXPECT_EQ(replacements.take_due(now), std::nullopt);
  EXPECT_EQ(replacements.lose(3, lost_one(1, true), now), "");
  EXPECT_THAT(replacements.lose(1, lost_one(0, true), now), HasSubstr("no new process is left"));
  replacements.others_went_on(now);
  EXPECT_EQ(replacements.take_due(now), 3U);
  EXPECT_EQ(replacements.used(), 2);
}

TEST(Replacements, R26OneBehindAProcessThatMadeNoStepWaitsAndAfterTwoOfThemThereIsNone) {
  Replacements replacements(9);
  auto const now = Replacements::Clock::now();
  EXPECT_EQ(replacements.lose(3, lost_one(0, false), now), "") << "the first of that rank counts as well";
  replacements.others_went_on(now);
  EXPECT_EQ(replacements.take_due(now), 3U);
  RankOutcome untaken = lost_one(1, false);
  untaken.newcomer = true;  // the others have nothing to go on without
  EXPECT_EQ(replacements.lose(3, untaken, now), "");
  EXPECT_EQ(replacements.take_due(now), std::nullopt);
  EXPECT_EQ(replacements.take_due(now + 1s), 3U);
  EXPECT_THAT(replacements.lose(3, lost_one(2, false), now),
              HasSubstr("2 in a row ended before their first step"));
  EXPECT_EQ(replacements.next(), std::nullopt);
}

TEST(Replacements, R26WithoutTheOptionThereAreNoneAndNothingIsSaid) {
  Replacements replacements(0);
  EXPECT_EQ(replacements.lose(3, lost_one(0, true), Replacements::Clock::now()), "");
  EXPECT_EQ(replacements.next(), std::nullopt);
}

}  // namespace
}  // namespace ddp::launcher
