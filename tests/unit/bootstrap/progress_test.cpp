// What ranks tell ddp-launch of their steps.
#include "bootstrap/progress.hpp"

#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <string>

namespace ddp::testing {
namespace {

std::string words_of(Progress const& progress) {
  std::array<char, kLongestProgress> room{};
  return std::string(write_progress(progress, room));
}

TEST(Progress, SaysTheStepAndWhatIsKnownOfItsPace) {
  EXPECT_EQ(words_of({120}), "step 120");
  EXPECT_EQ(words_of({120, Progress::Pace{13.0625, Rank{3}, 1.25}}),
            "step 120, 13.062 ms, slowest rank 3 by 1.250 ms");
}

TEST(Progress, R20WhatIsWrittenIsRead) {
  auto const found = read_progress(words_of({7, Progress::Pace{0.5, Rank{1023}, 0.25}}));
  ASSERT_TRUE(found && found->pace);
  EXPECT_EQ(found->steps, 7U);
  EXPECT_EQ(found->pace->step_ms, 0.5);
  EXPECT_EQ(found->pace->slowest, Rank{1023});
  EXPECT_EQ(found->pace->late_ms, 0.25);
  auto const plain = read_progress("step 18446744073709551615");
  ASSERT_TRUE(plain);
  EXPECT_EQ(plain->steps, std::numeric_limits<std::uint64_t>::max());
  EXPECT_FALSE(plain->pace);
}

TEST(Progress, TheLongestHasRoom) {
  Progress const longest{
      std::numeric_limits<std::uint64_t>::max(),
      Progress::Pace{999'999'999.999, Rank{std::numeric_limits<int>::max()}, 999'999'999.999}};
  EXPECT_EQ(words_of(longest),
            "step 18446744073709551615, 999999999.999 ms, slowest rank 2147483647 by 999999999.999 ms");
  double const infinite = std::numeric_limits<double>::infinity();
  EXPECT_EQ(words_of({1, Progress::Pace{infinite, Rank{0}, 0}}), "step 1");
  EXPECT_EQ(words_of({1, Progress::Pace{std::numeric_limits<double>::quiet_NaN(), Rank{0}, 0}}), "step 1");
}

TEST(Progress, OtherWordsHaveNoPace) {
  EXPECT_FALSE(read_progress(""));
  EXPECT_FALSE(read_progress("epoch 3"));
  EXPECT_FALSE(read_progress("step by step"));
  for (char const* const words :
       {"step 41, all_reduce 82", "step 41, 1.0 ms", "step 41, 1.0 ms, slowest rank -1 by 1 ms",
        "step 41, nan ms, slowest rank 1 by 1 ms", "step 41, 1 ms, slowest rank 1 by 1 ms more"}) {
    auto const found = read_progress(words);
    ASSERT_TRUE(found) << words;
    EXPECT_EQ(found->steps, 41U) << words;
    EXPECT_FALSE(found->pace) << words;
  }
}

}  // namespace
}  // namespace ddp::testing
