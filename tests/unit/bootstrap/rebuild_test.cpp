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
  /// Waits for it; "" if it does not come.
  static std::string interruption_of(ControlPlane const& control) {
    for (Deadline const give_up = patient(); !give_up.expired();) {
      if (auto const why = control.interruption()) return to_string(*why);
      std::this_thread::sleep_for(milliseconds(1));
    }
    return {};
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
    EXPECT_THAT(error.what(), HasSubstr("2 of 4 ranks are left, and --min-ranks (DDP_MIN_RANKS) is 3"));
  });
}

TEST_P(RebuildContract, R26ANewcomerEndsTheMembershipAndIsInTheNext) {
  auto const j = job(3, 1);
  j->declare_lost(killed(1, 9));
  auto const both = std::to_array({Rank{0}, Rank{2}});
  run_ranks(3, [&](int r) {
    if (r == 1) return;
    EXPECT_THAT(j->rank(r).rebuild("", patient()).ranks, ElementsAre(Rank{0}, Rank{2}));
  });
  j->replace(1);
  // By itself it gathers what it likes, and the others go on as before.
  auto const itself = std::to_array({Rank{1}});
  EXPECT_THAT(j->rank(1).all_gather("alone", "mine", itself, patient()), ElementsAre("mine"));
  EXPECT_THAT(error_of([&] {
                static_cast<void>(j->rank(1).all_gather("all", "", j->rank(1).everyone(), patient()));
              }).what(),
              HasSubstr("rank 1 is a newcomer, and does not take part before Replicated is made"));
  for (Failure const& lost : j->rank(1).lost())
    EXPECT_NE(lost.ranks.front(), 1) << "is the process before it";
  run_ranks(3, [&](int r) {
    if (r == 1) return;
    EXPECT_EQ(j->rank(r).all_gather("both", "", both, patient()).size(), 2U);
  });
  run_ranks(3, [&](int r) {
    if (r != 1) {
      EXPECT_EQ(
          error_of<CommError>([&] { static_cast<void>(j->rank(r).get("never put", patient())); }).code(),
          ErrorCode::aborted);
      EXPECT_THAT(interruption_of(j->rank(r)), HasSubstr("a new process waits in the place of rank 1"));
    }
    Membership const next = j->rank(r).rebuild(text("of ", r), patient());
    EXPECT_EQ(next.number, 2);
    EXPECT_THAT(next.ranks, ElementsAre(Rank{0}, Rank{1}, Rank{2}));
    EXPECT_THAT(next.values, ElementsAre("of 0", "of 1", "of 2"));
    EXPECT_TRUE(j->rank(r).lost().empty());
    EXPECT_FALSE(j->rank(r).interruption());
    EXPECT_EQ(j->rank(r).all_gather("all", "", next.ranks, patient()).size(), 3U);
  });
  j->declare_lost(killed(1, 6));
  run_ranks(3, [&](int r) {
    if (r == 1) return;
    hear_of(j->rank(r), 1);
    EXPECT_THAT(to_string(j->rank(r).lost().at(0)), HasSubstr("killed by signal 6"));
    EXPECT_EQ(j->rank(r).rebuild("", patient()).ranks.size(), 2U);
  });
}

TEST_P(RebuildContract, R26NobodyWaitsForANewcomer) {
  auto const j = job(3, 1);
  j->declare_lost(killed(1, 9));
  j->replace(1);
  run_ranks(3, [&](int r) {
    if (r == 1) return;
    EXPECT_THAT(j->rank(r).rebuild("", patient()).ranks, ElementsAre(Rank{0}, Rank{2}));
  });
  // It is lost before it asks, and another comes.
  j->declare_lost(killed(1, 9));
  j->replace(1);
  // One that nobody takes in by its deadline has failed, and harms nobody.
  CommError const late = error_of<CommError>([&] { static_cast<void>(j->rank(1).rebuild("", soon())); });
  EXPECT_EQ(late.code(), ErrorCode::timeout);
  EXPECT_THAT(late.what(), HasSubstr("the ranks of the job did not come to World::rebuild()"));
  run_ranks(3, [&](int r) {
    if (r == 1) return;
    EXPECT_THAT(j->rank(r).rebuild("", patient()).ranks, ElementsAre(Rank{0}, Rank{2}));
  });
}

TEST_P(RebuildContract, R26ANewcomerThatDiesWhileItWaitsIsLeftOut) {
  auto const j = job(2, 1);
  j->declare_lost(killed(1, 9));
  j->replace(1);
  run_ranks(2, [&](int r) {
    if (r == 1) {
      EXPECT_THAT(error_of([&] { static_cast<void>(j->rank(1).rebuild("", patient())); }).what(),
                  HasSubstr("rank 1"));
      return;
    }
    EXPECT_NE(interruption_of(j->rank(0)), "");
    j->declare_lost(killed(1, 9));
    EXPECT_THAT(j->rank(0).rebuild("", patient()).ranks, ElementsAre(Rank{0}));
  });
}

TEST_P(RebuildContract, R26ANewcomerIsRefusedWhenAllOthersHaveEnded) {
  auto const j = job(2, 1);
  j->declare_lost(killed(1, 9));
  j->replace(1);
  run_ranks(2, [&](int r) {
    if (r == 0) {
      EXPECT_NE(interruption_of(j->rank(0)), "");
      return j->rank(0).leave();
    }
    EXPECT_THAT(error_of([&] { static_cast<void>(j->rank(1).rebuild("", patient())); }).what(),
                HasSubstr("all ranks of the job have ended"));
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
