#include "reducer/ranks.hpp"

#include <array>

#include "support/ranks/in_process_worlds.hpp"

namespace ddp::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

ReducerRanks of(World const& world, std::chrono::milliseconds timeout) {
  return {"model", world.shared_control(), world.control().everyone(), timeout};
}

TEST(ReducerRanks, EachHearsAllByPlace) {
  on_ranks(3, [](World const& world) {
    EXPECT_THAT(of(world, std::chrono::seconds(60)).exchange("what", std::to_string(world.rank().value())),
                ElementsAre("0", "1", "2"));
  });
}

TEST(ReducerRanks, R12TheFirstThatDiffersIsNamedOnEveryRank) {
  on_ranks(3, [](World const& world) {
    ReducerRanks const ranks = of(world, std::chrono::seconds(60));
    ranks.require_same("options", "sums", "advice");
    try {
      ranks.require_same("plan", world.rank() == 2 ? "sums" : "averages", "give every rank the same");
      ADD_FAILURE() << "they differ";
    } catch (CommError const& error) {
      EXPECT_EQ(error.code(), ErrorCode::mismatch);
      EXPECT_THAT(error.what(), HasSubstr("rank 2 would reduce gradients with sums; rank 0 with averages; "
                                          "give every rank the same"));
    }
  });
}

TEST(ReducerRanks, OneThatDoesNotComeIsNoFailureOfAVerdict) {
  on_ranks(2, [](World const& world) {
    if (world.rank() != 0) return;
    auto const begin = std::chrono::steady_clock::now();
    of(world, std::chrono::milliseconds(10)).let_others_read();
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20))
        << "its own deadline ended it";
  });
}

TEST(ReducerRanks, AreNamedInOneWay) {
  EXPECT_EQ(name_ranks(std::array{Rank{3}}), "rank 3");
  EXPECT_EQ(name_ranks(std::array{Rank{0}, Rank{3}}), "ranks 0, 3");
}

}  // namespace
}  // namespace ddp::testing
