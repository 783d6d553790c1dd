#include "core/record.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <locale>
#include <vector>

namespace ddp {
namespace {

TEST(Record, GivesFieldsBackWhateverTheyHold) {
  std::string const odd("My Mac\n7:\0,", 11);
  std::string const said = record(odd, 42, "", 1.1) + record(std::numeric_limits<std::uint64_t>::max());
  RecordReader reader(said);
  std::string first;
  std::string empty = "not yet read";
  int number = 0;
  double fraction = 0;
  std::uint64_t large = 0;
  ASSERT_TRUE(reader >> first >> number >> empty >> fraction >> large);
  EXPECT_EQ(first, odd);
  EXPECT_EQ(number, 42);
  EXPECT_EQ(empty, "");
  EXPECT_EQ(fraction, 1.1);
  EXPECT_EQ(large, std::numeric_limits<std::uint64_t>::max());
  EXPECT_FALSE(reader >> number) << "there is no more";
  EXPECT_EQ(number, 42);
}

TEST(Record, IsTheSameInEveryLocale) {
  struct Grouped : std::numpunct<char> {
    [[nodiscard]] char do_thousands_sep() const override { return ','; }
    [[nodiscard]] std::string do_grouping() const override { return "\3"; }
    [[nodiscard]] char do_decimal_point() const override { return ','; }
  };
  std::locale const before = std::locale::global(std::locale(std::locale(), new Grouped));
  EXPECT_EQ(record(1821, 2.5), "4:18213:2.5");
  std::locale::global(before);
}

TEST(Record, WhatIsNoRecordIsFalse) {
  for (char const* said : {"", "5", "5:", "5:four", "-1:x", "x:1", ":1", "99999999999999999999:1",
                           "18446744073709551615:1", "my host 42"}) {
    std::string field = "as it was";
    EXPECT_FALSE(RecordReader(said) >> field) << said;
    EXPECT_EQ(field, "as it was") << said;
  }
  for (char const* said : {"0:", "1:x", "3:4 2", "2:4x", "10:4294967296"}) {
    int number = 7;
    EXPECT_FALSE(RecordReader(said) >> number) << said;
    EXPECT_EQ(number, 7) << said;
  }
}

TEST(FirstToDiffer, IsTheFirstRankThatSaidSomethingElseThanRank0) {
  EXPECT_EQ(first_to_differ(std::vector<int>{}), 0U);
  EXPECT_EQ(first_to_differ(std::vector<int>{4, 4, 4}), 0U);
  EXPECT_EQ(first_to_differ(std::vector<int>{4, 4, 5, 6}), 2U);
  EXPECT_EQ(first_to_differ(std::vector<int>{1, 3, 4}, [](int said) { return said % 2; }), 2U);
}

}  // namespace
}  // namespace ddp
