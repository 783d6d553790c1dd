#include "bootstrap/letters.hpp"

#include <gtest/gtest.h>

#include "ddp/core/text.hpp"

namespace ddp::testing {
namespace {

TEST(Letters, TheOldestOfTooManyAreDropped) {
  Letters letters;
  letters.put("nobody reads this", {Rank{0}, ""});
  for (std::size_t i = 0; i < Letters::kMost; ++i) letters.put("a", {Rank{1}, text(i)});
  EXPECT_FALSE(letters.take("nobody reads this"));
  EXPECT_EQ(letters.take("a").value().bytes, "0");
}

}  // namespace
}  // namespace ddp::testing
