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

void go_on(Replacements& replacements, Replacements::Clock::time_point now) {
  replacements.others_met(Rank{0}, 7, now);
  replacements.note_steps(8, now);
}

TEST(Replacements, R26ALostRankGetsANewProcessWhenTheOthersHaveGoneOnUntilAllAreUsed) {
  Replacements replacements(2);
  auto const now = Replacements::Clock::now();
  EXPECT_EQ(replacements.lose(3, lost_one(0, true), now), "");
  EXPECT_EQ(replacements.next(), std::nullopt) << "the job may end with it";
  replacements.others_met(Rank{1}, 40, now);
  EXPECT_EQ(replacements.awaited(), Rank{1});
  EXPECT_GT(replacements.next(), now);
  EXPECT_LT(replacements.next(), now + 100ms);
  replacements.note_steps(40, now);
  EXPECT_EQ(replacements.take_due(now), std::nullopt) << "they connect their GPUs";
  replacements.note_steps(41, now);
  EXPECT_EQ(replacements.awaited(), std::nullopt);
  EXPECT_EQ(replacements.next(), now);
  EXPECT_EQ(replacements.take_due(now), 3U);
  EXPECT_EQ(replacements.take_due(now), std::nullopt);
  EXPECT_EQ(replacements.lose(3, lost_one(1, true), now), "");
  EXPECT_THAT(replacements.lose(1, lost_one(0, true), now), HasSubstr("no new process is left"));
  go_on(replacements, now);
  EXPECT_EQ(replacements.take_due(now), 3U);
  EXPECT_EQ(replacements.used(), 2);
}

TEST(Replacements, R26OneBehindAProcessThatMadeNoStepWaitsAndAfterTwoOfThemThereIsNone) {
  Replacements replacements(9);
  auto const now = Replacements::Clock::now();
  EXPECT_EQ(replacements.lose(3, lost_one(0, false), now), "") << "the first of that rank counts as well";
  go_on(replacements, now);
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

TEST(Replacements, R26OthersThatTakeLongForAStepOrMeetAgainBeforeItAreNotAwaitedForEver) {
  Replacements replacements(9);
  auto const now = Replacements::Clock::now();
  EXPECT_EQ(replacements.lose(3, lost_one(0, true), now), "");
  replacements.others_met(Rank{0}, 7, now);
  EXPECT_EQ(replacements.lose(2, lost_one(0, true), now), "");
  replacements.note_steps(8, now);
  EXPECT_EQ(replacements.take_due(now), 3U);
  EXPECT_EQ(replacements.take_due(now), std::nullopt) << "of rank 2 the others do not know yet";
  replacements.others_met(Rank{0}, 8, now);
  EXPECT_EQ(replacements.lose(0, lost_one(0, true), now), "");
  replacements.others_met(Rank{1}, 8, now + 4s);
  EXPECT_EQ(replacements.awaited(), Rank{1});
  replacements.note_steps(std::nullopt, now + 8s);
  EXPECT_EQ(replacements.take_due(now + 8s), std::nullopt) << "how many it has ended is not known now";
  replacements.note_steps(8, now + 10s);
  EXPECT_EQ(replacements.take_due(now + 10s), 0U);
  EXPECT_EQ(replacements.take_due(now + 10s), 2U);
}

TEST(Replacements, R26WithoutTheOptionThereAreNoneAndNothingIsSaid) {
  Replacements replacements(0);
  EXPECT_EQ(replacements.lose(3, lost_one(0, true), Replacements::Clock::now()), "");
  EXPECT_EQ(replacements.next(), std::nullopt);
}

}  // namespace
}  // namespace ddp::launcher
