// One contract for every control plane: how the ranks that live go on together (R26).
#include <gmock/gmock.h>

#include <chrono>
#include <thread>

#include "ddp/core/text.hpp"
#include "support/contract/every_control_plane.hpp"
#include "support/errors.hpp"
#include "support/ranks/lost_rank.hpp"

namespace ddp::testing {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class RebuildContract : public EveryControlPlane {
 protected:
  /// Until this rank has heard of that many losses.
  static void hear_of(ControlPlane& control, std::size_t losses) {
    for (Deadline const give_up = patient(); control.lost().size() < losses && !give_up.expired();) {
      std::this_thread::sleep_for(milliseconds(1));
    }
  }
};
INSTANTIATE_TEST_SUITE_P(, RebuildContract, EveryControlPlane::kinds(), EveryControlPlane::name_of);

TEST_P(RebuildContract, R26TheLivingGetTheSameMembersAndWhatEachGave) {
  auto const j = job(4, 1);
  j->declare_lost(killed(1, 9));
  run_ranks(4, [&](int r) {
    if (r == 1) return;
    Membership const next = j->rank(r).rebuild(text("of ", r), patient());
    EXPECT_EQ(next.number, 1);
    EXPECT_THAT(next.ranks, ElementsAre(Rank{0}, Rank{2}, Rank{3}));
    EXPECT_THAT(next.values, ElementsAre("of 0", "of 2", "of 3"));
    // What the old membership's loss failed works in the new one.
    if (r == 0) j->rank(r).put("new", "value");
    EXPECT_EQ(j->rank(r).get("new", patient()), "value");
    EXPECT_EQ(j->rank(r).all_gather("new", "", next.ranks, patient()).size(), 3U);
  });
  j->declare_lost(killed(0, 9));
  for (int r : {2, 3}) hear_of(j->rank(r), 2);
  EXPECT_THAT(error_of<CommError>([&] { static_cast<void>(j->rank(3).get("later", patient())); }).what(),
              HasSubstr("rank 0 died"))
      << "a death of the new membership fails its waits";
  run_ranks(4, [&](int r) {
    if (r < 2) return;
    EXPECT_EQ(j->rank(r).rebuild("", patient()).number, 2);
  });
}

TEST_P(RebuildContract, R26TheFirstWhoRebuildsEndsTheWaitsOfTheOthers) {
  auto const j = job(3, 1);
  run_ranks(3, [&](int r) {
    if (r > 0) {
      auto const pair = std::to_array({Rank{1}, Rank{2}});
      CommError const error = error_of<CommError>([&] {
        if (r == 1) static_cast<void>(j->rank(r).get("never put", patient()));
        // Nobody died, and rank 0 is none of these.
        static_cast<void>(j->rank(r).all_gather("two", "", pair, patient()));
      });
      EXPECT_EQ(error.code(), ErrorCode::aborted);
      EXPECT_THAT(error.what(), HasSubstr("rank 0 has given up, and calls World::rebuild()"));
    }
    EXPECT_EQ(j->rank(r).rebuild("", patient()).ranks.size(), 3U);
  });
}

TEST_P(RebuildContract, R26WhoDiesOrLeavesMeanwhileIsLeftOut) {
  auto const j = job(4, 1);
  run_ranks(4, [&](int r) {
    if (r == 3) {
      std::this_thread::sleep_for(milliseconds(50));
      j->declare_lost(killed(3, 9));
      return;
    }
    if (r == 2) return j->rank(r).leave();
    EXPECT_THAT(j->rank(r).rebuild("", patient()).ranks, ElementsAre(Rank{0}, Rank{1}));
  });
}

TEST_P(RebuildContract, R26WhoDoesNotComeByTheDeadlineIsLost) {
  auto const j = job(3, 1);
  run_ranks(3, [&](int r) {
    if (r == 1) return;
    EXPECT_THAT(j->rank(r).rebuild("", Deadline::after(milliseconds(200))).ranks,
                ElementsAre(Rank{0}, Rank{2}));
    ASSERT_EQ(j->rank(r).lost().size(), 1U);
    EXPECT_EQ(j->rank(r).lost()[0].manner, Failure::Manner::silent);
    EXPECT_THAT(j->rank(r).lost()[0].ranks, ElementsAre(Rank{1}));
  });
  EXPECT_THAT(error_of<CommError>([&] { static_cast<void>(j->rank(1).rebuild("", patient())); }).what(),
              HasSubstr("this rank was declared lost: rank 1 did not come to rebuild()"));
  if (auto* const launched = dynamic_cast<LaunchedControlJob*>(j.get())) {
    EXPECT_TRUE(launched->server.saw(ControlServer::Event::Kind::late, Rank{1}));
    auto const rebuilt = launched->server.find(ControlServer::Event::Kind::rebuilt, Rank{0});
    ASSERT_TRUE(rebuilt);
    EXPECT_EQ(rebuilt->membership.number, 1);
    EXPECT_THAT(rebuilt->membership.ranks, ElementsAre(Rank{0}, Rank{2}));
  }
}

TEST_P(RebuildContract, R26WithFewerThanTheLeastItIsRefusedAlsoWhereOthersWaitAlready) {
  auto const j = job(4, 3);
  j->declare_lost(killed(0, 9));
  run_ranks(4, [&](int r) {
    if (r == 0) return;
    if (r == 3) {
      std::this_thread::sleep_for(milliseconds(50));
      return j->declare_lost(killed(3, 9));
    }
    Error const error = error_of([&] { static_cast<void>(j->rank(r).rebuild("", patient())); });
    EXPECT_EQ(error.code(), ErrorCode::invalid_state);
    EXPECT_THAT(error.what(), HasSubstr("2 of 4 ranks are left, and --min-ranks is 3"));
  });
}

TEST_P(RebuildContract, R26AJobThatEndsWithItsFirstLostRankSaysSo) {
  auto const j = job(2);
  Error const error = error_of([&] { static_cast<void>(j->rank(0).rebuild("", patient())); });
  EXPECT_EQ(error.code(), ErrorCode::unsupported);
  EXPECT_THAT(error.what(), HasSubstr("start it with ddp-launch --survive"));
}

}  // namespace
}  // namespace ddp::testing
