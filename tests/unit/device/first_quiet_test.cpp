#include "device/stream/first_quiet.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace ddp::testing {
namespace {

// Takes the first of `times` that is at most 10.
Quiet chosen(std::vector<double> const& times, std::size_t expected_tries) {
  std::size_t tried = 0;
  Quiet const found = first_quiet(times.size(), 10, [&](std::size_t i) {
    EXPECT_EQ(i, tried++);
    return times[i];
  });
  EXPECT_EQ(tried, expected_tries);
  return found;
}

TEST(FirstQuiet, AQuietOneIsKeptAndNoOtherTried) { EXPECT_EQ(chosen({10, 1}, 1).index, 0U); }

TEST(FirstQuiet, TheFirstThatIsQuietIsTaken) {
  Quiet const found = chosen({12, 11, 9, 5}, 3);
  EXPECT_EQ(found.index, 2U);
  EXPECT_EQ(found.time, 9);
  EXPECT_EQ(found.first, 12);
}

TEST(FirstQuiet, WithoutAQuietOneTheFastestIsTaken) {
  EXPECT_EQ(chosen({12, 11, 13, 11}, 4).index, 1U);
  EXPECT_EQ(chosen({11, 12}, 2).index, 0U);
}

}  // namespace
}  // namespace ddp::testing
