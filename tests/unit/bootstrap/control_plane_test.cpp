// One contract for every control plane: in-process ranks, and clients of ddp-launch's server.
#include "ddp/bootstrap/control_plane.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>

#include "ddp/core/text.hpp"
#include "support/contract/every_control_plane.hpp"
#include "support/errors.hpp"

namespace ddp::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ControlPlaneContract : public EveryControlPlane {};
INSTANTIATE_TEST_SUITE_P(, ControlPlaneContract, EveryControlPlane::kinds(), EveryControlPlane::name_of);

std::string pattern(std::size_t size, int seed) {
  std::string bytes(size, '\0');
  for (std::size_t i = 0; i < size; ++i) {
    bytes[i] = static_cast<char>((i * 131 + static_cast<std::size_t>(seed) * 17 + i / 4093) & 0xffU);
  }
  return bytes;
}

TEST_P(ControlPlaneContract, KnowsItsPlace) {
  auto const j = job(3);
  for (int r = 0; r < 3; ++r) {
    EXPECT_EQ(j->rank(r).rank(), r);
    EXPECT_EQ(j->rank(r).size(), 3);
    EXPECT_THAT(j->rank(r).everyone(), ElementsAre(Rank{0}, Rank{1}, Rank{2}));
    EXPECT_TRUE(j->rank(r).lost().empty());
  }
}

TEST_P(ControlPlaneContract, PassesOnNoticesInOrder) {
  auto const j = job(3);
  std::mutex mutex;
  std::string heard[3];
  std::string other_name;
  std::size_t count = 0;
  auto const hear = [&](Rank from, std::string_view bytes) {
    std::lock_guard const lock(mutex);
    heard[from.index()] += text(bytes, ';');
    ++count;
  };
  auto const others = std::to_array({Rank{1}, Rank{2}});
  j->rank(0).notify(others, "a", "0");  // before rank 1 listens
  auto listening = j->rank(1).listen("a", hear);
  auto const to_other = j->rank(1).listen("b", [&](Rank /*from*/, std::string_view bytes) {
    std::lock_guard const lock(mutex);
    other_name = bytes;
    ++count;
  });
  for (int r : {0, 2}) {
    for (char const* const bytes : {"1", "2", ""}) j->rank(r).notify(std::array{Rank{1}}, "a", bytes);
  }
  j->rank(0).notify(std::array{Rank{1}}, "b", std::string("a\0b", 3));
  auto const have_come = [&] {
    std::lock_guard const lock(mutex);
    return count == 8;
  };
  for (Deadline const give_up = patient(); !have_come() && !give_up.expired();) std::this_thread::yield();
  listening.reset();
  EXPECT_EQ(heard[0], "0;1;2;;");
  EXPECT_EQ(heard[1], "");
  EXPECT_EQ(heard[2], "1;2;;");
  EXPECT_EQ(other_name, std::string("a\0b", 3));
}

TEST_P(ControlPlaneContract, GivesWhatAnyRankHasPut) {
  auto const j = job(2);
  std::string const bytes("a\0b\xff", 4);
  j->rank(0).put("key", bytes);
  EXPECT_EQ(j->rank(1).get("key", patient()), bytes);
  EXPECT_EQ(j->rank(0).get("key", patient()), bytes) << "its own too";
  EXPECT_EQ(j->rank(1).get("key", soon()), bytes) << "as often as it is asked for";
  j->rank(1).put("empty", "");
  EXPECT_EQ(j->rank(0).get("empty", patient()), "");
}

TEST_P(ControlPlaneContract, GetWaitsForThePut) {
  auto const j = job(3);
  std::atomic<bool> put{false};
  run_ranks(3, [&](int r) {
    if (r == 0) {
      std::this_thread::sleep_for(milliseconds(30));
      put = true;
      j->rank(0).put("late", "value");
    } else {
      EXPECT_EQ(j->rank(r).get("late", patient()), "value");
      EXPECT_TRUE(put.load());
    }
  });
}

TEST_P(ControlPlaneContract, AnExpiredDeadlineStillGetsWhatIsThere) {
  auto const j = job(2);
  j->rank(0).put("key", "value");
  EXPECT_EQ(j->rank(1).get("key", Deadline::after(milliseconds(0))), "value");
}

TEST_P(ControlPlaneContract, RefusesASecondPut) {
  auto const j = job(2);
  j->rank(0).put("once", "first");
  Error const error = error_of([&] { j->rank(1).put("once", "second"); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_state);
  EXPECT_THAT(error.what(), HasSubstr("put(\"once\")"));
  EXPECT_EQ(j->rank(0).get("once", patient()), "first");
}

TEST_P(ControlPlaneContract, ATimeoutOfGetNamesTheKey) {
  auto const j = job(2);
  auto const start = std::chrono::steady_clock::now();
  CommError const error = error_of<CommError>([&] { static_cast<void>(j->rank(0).get("never", soon())); });
  auto const waited = std::chrono::steady_clock::now() - start;
  EXPECT_EQ(error.code(), ErrorCode::timeout);
  EXPECT_THAT(error.what(),
              AllOf(HasSubstr("get(\"never\")"), HasSubstr("0.1 s"), HasSubstr("no rank has put it")));
  EXPECT_GE(waited, milliseconds(100));
  EXPECT_LT(waited, seconds(2));
  j->rank(1).put("never", "after all");
  EXPECT_EQ(j->rank(0).get("never", patient()), "after all") << "the timeout harmed nothing";
}

TEST_P(ControlPlaneContract, GathersInTheGroupsOrder) {
  auto const j = job(4);
  std::vector<Rank> const group{Rank{2}, Rank{0}, Rank{3}, Rank{1}};
  run_ranks(4, [&](int r) {
    EXPECT_THAT(j->rank(r).all_gather("order", text("from ", r), group, patient()),
                ElementsAre("from 2", "from 0", "from 3", "from 1"));
  });
}

TEST_P(ControlPlaneContract, NobodyPassesABarrierBeforeTheLastHasCome) {
  auto const j = job(3);
  std::atomic<int> arrived{0};
  run_ranks(3, [&](int r) {
    for (int round = 1; round <= 20; ++round) {
      if (r == round % 3) std::this_thread::sleep_for(milliseconds(1));
      ++arrived;
      j->rank(r).barrier("round", patient());
      EXPECT_GE(arrived.load(), 3 * round);
      j->rank(r).barrier("checked", patient());
    }
  });
}

TEST_P(ControlPlaneContract, ANameCanBeUsedAgainAtOnce) {
  auto const j = job(4);
  run_ranks(4, [&](int r) {
    for (int round = 0; round < 200; ++round) {
      auto const values =
          j->rank(r).all_gather("again", text(round, " ", r), j->rank(r).everyone(), patient());
      for (int other = 0; other < 4; ++other) {
        ASSERT_EQ(values[static_cast<std::size_t>(other)], text(round, " ", other));
      }
    }
  });
}

TEST_P(ControlPlaneContract, DisjointGroupsGatherUnderOneNameInParallel) {
  auto const j = job(6);
  run_ranks(6, [&](int r) {
    std::vector<Rank> const group =
        r % 2 == 0 ? std::vector{Rank{0}, Rank{2}, Rank{4}} : std::vector{Rank{1}, Rank{3}, Rank{5}};
    for (int round = 0; round < 50; ++round) {
      auto const values = j->rank(r).all_gather("half", text(r), group, patient());
      ASSERT_EQ(values, (r % 2 == 0 ? std::vector<std::string>{"0", "2", "4"}
                                    : std::vector<std::string>{"1", "3", "5"}));
    }
  });
}

TEST_P(ControlPlaneContract, RanksThatNameDifferentGroupsAllFailAtOnce) {
  auto const j = job(3);
  std::atomic<int> failures{0};
  run_ranks(3, [&](int r) {
    std::vector<Rank> const mine = r == 2 ? std::vector{Rank{2}, Rank{1}, Rank{0}} : j->rank(r).everyone();
    if (r == 2) std::this_thread::sleep_for(milliseconds(50));
    CommError const error =
        error_of<CommError>([&] { static_cast<void>(j->rank(r).all_gather("agree", "", mine, patient())); });
    EXPECT_EQ(error.code(), ErrorCode::mismatch);
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("all_gather(\"agree\")"), HasSubstr("[2, 1, 0]"), HasSubstr("[0, 1, 2]")));
    ++failures;
  });
  EXPECT_EQ(failures, 3);
}

TEST_P(ControlPlaneContract, RefusesGroupsThatCannotBe) {
  auto const j = job(2);
  for (std::vector<Rank> const& group :
       {std::vector{Rank{1}}, {Rank{0}, Rank{0}}, {Rank{0}, Rank{2}}, {Rank{0}, Rank{-1}}, {}}) {
    Error const error =
        error_of([&] { static_cast<void>(j->rank(0).all_gather("bad", "", group, patient())); });
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument) << error.what();
  }
  j->rank(0).put("still", "works");
  EXPECT_EQ(j->rank(0).get("still", patient()), "works");
}

TEST_P(ControlPlaneContract, CarriesBigValues) {
  auto const j = job(2);
  std::size_t const size = (16_MiB).value;
  std::string const put = pattern(size, 7);
  std::vector<std::string> const gathered{pattern(size, 0), pattern(size + 1, 1)};
  run_ranks(2, [&](int r) {
    if (r == 0) j->rank(0).put("big", put);
    EXPECT_TRUE(j->rank(r).get("big", patient()) == put);
    EXPECT_TRUE(j->rank(r).all_gather("big", gathered[static_cast<std::size_t>(r)], j->rank(r).everyone(),
                                      patient()) == gathered);
  });
}

TEST_P(ControlPlaneContract, RefusesKeysAndValuesThatAreTooLarge) {
  auto const j = job(1);
  std::string const longest(ControlPlane::kMaxKey, 'k');
  j->rank(0).put(longest, "fits");
  EXPECT_EQ(j->rank(0).get(longest, patient()), "fits");
  EXPECT_EQ(error_of([&] { j->rank(0).put(longest + "k", ""); }).code(), ErrorCode::invalid_argument);
  EXPECT_EQ(error_of([&] { j->rank(0).put("", ""); }).code(), ErrorCode::invalid_argument);
  std::string const value(ControlPlane::kMaxValue + 1, 'v');
  Error const error = error_of([&] { j->rank(0).put("key", value); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
  EXPECT_THAT(error.what(), HasSubstr("at most 64 MiB"));
  j->rank(0).put("key", std::string_view(value).substr(1));
  EXPECT_EQ(j->rank(0).get("key", patient()).size(), ControlPlane::kMaxValue);
}

TEST_P(ControlPlaneContract, TakesCallsFromManyThreadsOfOneRank) {
  auto const j = job(2);
  run_ranks(16, [&](int thread) {
    int const r = thread % 2;
    int const pair = thread / 2;
    for (int round = 0; round < 25; ++round) {
      std::string const mine = text("value ", thread, " ", round);
      j->rank(r).put(text("key ", thread, " ", round), mine);
      auto const values = j->rank(r).all_gather(text("pair ", pair), mine, j->rank(r).everyone(), patient());
      ASSERT_THAT(values, ElementsAre(text("value ", 2 * pair, " ", round),
                                      text("value ", 2 * pair + 1, " ", round)));
      ASSERT_EQ(j->rank(r).get(text("key ", thread ^ 1, " ", round), patient()),
                text("value ", thread ^ 1, " ", round));
    }
  });
}

TEST_P(ControlPlaneContract, RefusesTheSameGatherTwiceInOneRank) {
  auto const j = job(2);
  std::atomic<bool> refused{false};
  run_ranks(3, [&](int thread) {
    if (thread == 2) {
      while (!refused) std::this_thread::yield();
      EXPECT_EQ(j->rank(1).all_gather("one", "", j->rank(1).everyone(), patient()).size(), 2U);
      return;
    }
    try {
      static_cast<void>(j->rank(0).all_gather("one", "", j->rank(0).everyone(), patient()));
    } catch (Error const& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_state);
      EXPECT_FALSE(refused.exchange(true)) << "one of the two goes on";
    }
  });
  EXPECT_TRUE(refused);
}

TEST_P(ControlPlaneContract, ServesSixtyFourRanks) {
  auto const j = job(64);
  run_ranks(64, [&](int r) {
    j->rank(r).put(text("of ", r), text(r * r));
    auto const values = j->rank(r).all_gather("all", text(r), j->rank(r).everyone(), patient());
    for (int other = 0; other < 64; ++other) ASSERT_EQ(values[static_cast<std::size_t>(other)], text(other));
    ASSERT_EQ(j->rank(r).get(text("of ", (r + 1) % 64), patient()), text(((r + 1) % 64) * ((r + 1) % 64)));
    j->rank(r).leave();
  });
}

TEST_P(ControlPlaneContract, ReportsNeverThrow) {
  auto const j = job(2);
  j->rank(0).report_error({.code = ErrorCode::io, .detail = "disk gone"});
  j->rank(0).report_progress({3});
  j->rank(0).leave();
  j->rank(0).report_error({.code = ErrorCode::io, .detail = "after leaving"});
  j->rank(0).report_progress({4});
  j->rank(1).put("key", "still works");
}

}  // namespace
}  // namespace ddp::testing
