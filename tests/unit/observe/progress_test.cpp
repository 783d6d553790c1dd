// What ranks tell ddp-launch of their steps.
#include "ddp/observe/progress.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <limits>

#include "observe/progress_words.hpp"

namespace ddp::testing {
namespace {

TEST(Progress, SaysTheStepAndWhatIsKnownOfItsPace) {
  EXPECT_EQ(to_string(Progress{120}), "step 120");
  EXPECT_EQ(to_string(Progress{120, Progress::Pace{13.0625, Rank{3}, 1.25}}),
            "step 120, 13.062 ms, slowest rank 3 by 1.250 ms");
}

TEST(Progress, R20WhatIsWrittenIsRead) {
  for (Progress const& progress :
       {Progress{7, Progress::Pace{0.5, Rank{1023}, 0.25}}, Progress{1, Progress::Pace{0, Rank{0}, 0}},
        Progress{std::numeric_limits<std::uint64_t>::max()}}) {
    EXPECT_EQ(unpack(pack(progress)), progress);
  }
}

TEST(Progress, OtherWordsHaveNoPace) {
  double const infinite = std::numeric_limits<double>::infinity();
  EXPECT_EQ(unpack(pack({1, Progress::Pace{infinite, Rank{0}, 0}})), Progress{1});
  EXPECT_EQ(unpack(pack({1, Progress::Pace{0, Rank{0}, std::numeric_limits<double>::quiet_NaN()}})),
            Progress{1});
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();
  EXPECT_EQ(unpack({41, kMost, 0, 0}), Progress{41});
  EXPECT_EQ(unpack({41, 0, std::bit_cast<std::uint64_t>(3.5), 0}), Progress{41});
}

}  // namespace
}  // namespace ddp::testing
