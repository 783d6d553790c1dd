// One contract for every control plane: what ranks learn of those that are missing, have died or have left.
#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "ddp/core/text.hpp"
#include "support/contract/every_control_plane.hpp"
#include "support/errors.hpp"
#include "support/ranks/lost_rank.hpp"

namespace ddp::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;

class LostRanksContract : public EveryControlPlane {};
INSTANTIATE_TEST_SUITE_P(, LostRanksContract, EveryControlPlane::kinds(), EveryControlPlane::name_of);

// F9
TEST_P(LostRanksContract, ATimeoutOfAGatherNamesWhoIsMissing) {
  auto const j = job(5);
  run_ranks(5, [&](int r) {
    if (r == 1 || r == 3) return;
    CommError const error =
        error_of<CommError>([&] { j->rank(r).barrier("init", Deadline::after(milliseconds(300))); });
    EXPECT_EQ(error.code(), ErrorCode::timeout);
    EXPECT_EQ(error.failure().manner, Failure::Manner::silent);
    EXPECT_EQ(error.failure().waited, milliseconds(300));
    EXPECT_THAT(error.failure().ranks, IsSupersetOf({Rank{1}, Rank{3}}));
    EXPECT_THAT(error.what(), AllOf(HasSubstr("all_gather(\"init\")"), HasSubstr("0.3 s"),
                                    HasSubstr("of 5 ranks"), HasSubstr("1"), HasSubstr("3")));
  });
  CommError const last = error_of<CommError>([&] { j->rank(4).barrier("init", soon()); });
  EXPECT_THAT(last.what(), HasSubstr("4 of 5 ranks are missing: 0, 1, 2, 3")) << "who gave up counts no more";
}

// F1: whoever needs the dead rank learns it at once, not at its deadline.
TEST_P(LostRanksContract, ADeadRankEndsWaitsAtOnceAndIsNamed) {
  auto const j = job(4);
  auto const start = std::chrono::steady_clock::now();
  run_ranks(4, [&](int r) {
    if (r == 2) {
      std::this_thread::sleep_for(milliseconds(50));
      j->declare_lost(killed(2, 9));
      return;
    }
    CommError const error = error_of<CommError>([&] {
      if (r == 0) static_cast<void>(j->rank(r).get("of the dead", patient()));
      j->rank(r).barrier("all", patient());
    });
    EXPECT_EQ(error.code(), ErrorCode::peer_lost);
    EXPECT_EQ(error.failure().manner, Failure::Manner::killed);
    EXPECT_THAT(error.failure().ranks, ElementsAre(Rank{2}));
    EXPECT_EQ(error.failure().status, 9);
    EXPECT_THAT(error.what(), HasSubstr("rank 2 died: killed by signal 9 (SIGKILL)"));
    ASSERT_EQ(j->rank(r).lost().size(), 1U) << "the news is there before the failure";
    EXPECT_EQ(j->rank(r).lost()[0].ranks.front(), 2);
    EXPECT_EQ(j->rank(r).lost()[0].manner, Failure::Manner::killed);
    EXPECT_EQ(j->rank(r).lost()[0].status, 9);
  });
  EXPECT_LT(std::chrono::steady_clock::now() - start, seconds(5));

  EXPECT_THAT(error_of<CommError>([&] { j->rank(0).barrier("later", patient()); }).what(),
              HasSubstr("rank 2"));
  EXPECT_EQ(error_of<CommError>([&] { static_cast<void>(j->rank(1).get("later", patient())); }).code(),
            ErrorCode::peer_lost);
}

TEST_P(LostRanksContract, SurvivorsGoOnWithoutTheDead) {
  auto const j = job(3);
  j->rank(2).put("before", "it died");
  j->declare_lost(died(2, "exit code 1"));
  std::vector<Rank> const survivors{Rank{0}, Rank{1}};
  run_ranks(2, [&](int r) {
    EXPECT_THAT(j->rank(r).all_gather("survivors", text(r), survivors, patient()), ElementsAre("0", "1"));
    EXPECT_EQ(j->rank(r).get("before", patient()), "it died");
  });
}

TEST_P(LostRanksContract, ARankThatLeftFailsOnlyGroupsThatHoldIt) {
  auto const j = job(3);
  std::atomic<bool> waiting{false};
  run_ranks(3, [&](int r) {
    if (r == 0) {
      while (!waiting) std::this_thread::yield();
      std::this_thread::sleep_for(milliseconds(50));
      j->rank(0).leave();
    } else if (r == 1) {
      waiting = true;
      CommError const error = error_of<CommError>([&] { j->rank(1).barrier("all", patient()); });
      EXPECT_EQ(error.code(), ErrorCode::peer_lost);
      EXPECT_THAT(error.what(), HasSubstr("rank 0 has left"));
      EXPECT_EQ(j->rank(1).lost().at(0).manner, Failure::Manner::left);
      j->rank(1).put("key", "value");
    } else {
      EXPECT_EQ(j->rank(2).get("key", patient()), "value") << "a get outlives the leaving";
    }
  });
  run_ranks(2, [&](int r) {
    std::vector<Rank> const rest{Rank{1}, Rank{2}};
    EXPECT_EQ(j->rank(r + 1).all_gather("rest", "", rest, patient()).size(), 2U);
  });
  EXPECT_EQ(error_of([&] { j->rank(0).put("too", "late"); }).code(), ErrorCode::invalid_state);
  j->rank(0).leave();  // twice is harmless
  EXPECT_EQ(j->rank(2).lost().size(), 1U);
}

TEST_P(LostRanksContract, NewsOfLostRanksComesUnasked) {
  auto const j = job(3);
  j->declare_lost(died(1, "exit code 3"));
  j->declare_lost(died(2, "exit code 4"));
  j->declare_lost(died(1, "told twice"));
  for (int i = 0; i < 1000 && j->rank(0).lost().size() < 2; ++i) std::this_thread::sleep_for(milliseconds(5));
  auto const lost = j->rank(0).lost();
  ASSERT_EQ(lost.size(), 2U);
  EXPECT_EQ(lost[0].ranks.front(), 1);
  EXPECT_EQ(lost[0].detail, "exit code 3");
  EXPECT_EQ(lost[1].ranks.front(), 2);
}

}  // namespace
}  // namespace ddp::testing
