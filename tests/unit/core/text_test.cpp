// Machine text is the same in every locale.
#include "ddp/core/text.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <vector>

#include "core/ascii.hpp"
#include "core/parse_number.hpp"
#include "ddp/core/ids.hpp"
#include "support/fakes/other_locale.hpp"

namespace ddp {
namespace {

TEST(Text, IsTheSameInEveryLocale) {
  testing::OtherLocale const german;
  std::ostringstream written_for_people;
  written_for_people << 1821;
  ASSERT_EQ(written_for_people.str(), "1.821");
  EXPECT_EQ(text("/proc/", 1821, "/fd/", 2.5), "/proc/1821/fd/2.5");
  EXPECT_EQ(text(Rank{12345}), "12345");
  EXPECT_EQ(join(std::vector{1000, 20000}, " "), "1000 20000");
  EXPECT_EQ(to_string(Bytes{1536}), "1.5 KiB");
}

TEST(Text, IsReadBackInEveryLocale) {
  testing::OtherLocale const german;
  testing::TemporaryFolder const folder;
  auto const file = folder.path() / "numbers";
  Classic<std::ofstream>(file) << 1000000 << ' ' << 0.5;
  int whole = 0;
  double half = 0;
  EXPECT_TRUE(Classic<std::ifstream>(file) >> whole >> half);
  EXPECT_EQ(whole, 1000000);
  EXPECT_EQ(half, 0.5);
}

TEST(Numbers, AreReadWholeOrNotAtAll) {
  testing::OtherLocale const german;
  EXPECT_EQ(parse_number<double>("2.5"), 2.5);
  EXPECT_EQ(parse_number<int>("-3"), -3);
  EXPECT_EQ(parse_number<std::uint64_t>("18446744073709551615"), UINT64_MAX);
  for (char const* const none : {"", " 3", "3 ", "+3", "3x", "1.000", "18446744073709551616"}) {
    EXPECT_FALSE(parse_number<std::uint64_t>(none)) << none;
  }
  EXPECT_FALSE(parse_number<double>("2,5"));
}

TEST(Letters, AreThoseOfAscii) {
  testing::OtherLocale const german;
  EXPECT_TRUE(is_letter('a') && is_letter('Z') && is_digit('0') && is_digit('9'));
  for (char const c : {'@', '[', '`', '{', '0', '\xe4', '\0'}) EXPECT_FALSE(is_letter(c)) << c;
  EXPECT_EQ(lower('I'), 'i');
  EXPECT_EQ(lower('\xc4'), '\xc4');
}

}  // namespace
}  // namespace ddp
