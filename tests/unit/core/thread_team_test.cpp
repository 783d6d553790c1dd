#include "core/thread_team.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <new>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "support/errors.hpp"

namespace ddp::testing {
namespace {

// The thread of each member; members from `count` on have none.
std::vector<std::thread::id> threads_of(ThreadTeam& team, std::size_t count) {
  std::vector<std::thread::id> ids(4);
  EXPECT_FALSE(team.run(count, [&](std::size_t member) {
    EXPECT_EQ(ids[member], std::thread::id()) << "called twice";
    ids[member] = std::this_thread::get_id();
  }));
  return ids;
}

TEST(ThreadTeam, EveryMemberHasAThreadAndTheFirstTheCallers) {
  ThreadTeam team(4);
  auto const ids = threads_of(team, 4);
  EXPECT_EQ(ids[0], std::this_thread::get_id());
  EXPECT_EQ(std::set(ids.begin(), ids.end()).size(), 4U);
  EXPECT_FALSE(std::set(ids.begin(), ids.end()).contains(std::thread::id()));
}

TEST(ThreadTeam, MembersRunAtTheSameTime) {
  ThreadTeam team(3);
  std::atomic<int> inside{0};
  std::atomic<int> met{0};
  EXPECT_FALSE(team.run(3, [&](std::size_t) {
    ++inside;
    for (int i = 0; i < 5000 && inside < 3; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (inside == 3) ++met;
  }));
  EXPECT_EQ(met, 3);
}

TEST(ThreadTeam, EveryRoundHasTheSameThreads) {
  ThreadTeam team(4);
  auto const ids = threads_of(team, 4);
  for (int round = 0; round < 200; ++round) {
    for (std::size_t const count : {4, 2, 0, 1, 3}) {
      std::vector<std::thread::id> expected = ids;
      std::fill(expected.begin() + static_cast<std::ptrdiff_t>(count), expected.end(), std::thread::id());
      ASSERT_EQ(threads_of(team, count), expected);
    }
  }
}

TEST(ThreadTeam, TheFailureOfTheLowestMemberIsReturnedWhenAllHaveEnded) {
  ThreadTeam team(4);
  std::atomic<int> ended{0};
  auto const failing_from = [&](std::size_t lowest) {
    return team.run(4, [&ended, lowest](std::size_t member) {
      if (member == lowest) std::this_thread::sleep_for(std::chrono::milliseconds(20));
      ++ended;
      if (member >= lowest) throw Error(ErrorCode::not_found, "member " + std::to_string(member));
    });
  };
  for (std::size_t const lowest : {2, 0, 3}) {
    ended = 0;
    auto const failure = failing_from(lowest);
    EXPECT_EQ(ended, 4);
    ASSERT_TRUE(failure);
    EXPECT_EQ(failure->member, lowest);
    EXPECT_EQ(message_of([&] { std::rethrow_exception(failure->error); }),
              "member " + std::to_string(lowest));
    EXPECT_FALSE(failing_from(4)) << "a failure is told once";
  }
}

TEST(ThreadTeam, ThreadsEndWithIt) {
  static std::atomic<int> ended;
  struct CountsEnd {
    ~CountsEnd() { ++ended; }
  };
  { ThreadTeam const idle_from_the_start(4); }
  for (std::size_t const used : {4, 2}) {
    ended = 0;
    {
      ThreadTeam team(4);
      EXPECT_FALSE(team.run(used, [](std::size_t member) {
        if (member > 0) thread_local CountsEnd of_this_thread;
      }));
      EXPECT_EQ(ended, 0) << "idle, and still there";
    }
    EXPECT_EQ(ended, static_cast<int>(used) - 1);
  }
}

TEST(RethrowAs, SaysWhoseTheErrorIsAndKeepsItsKindAndTheOriginal) {
  auto const rethrow = [](auto thrown) { rethrow_as("member 1: ", std::make_exception_ptr(thrown)); };
  auto const lost = error_of<CommError>([&] { rethrow(CommError(ErrorCode::peer_lost, "gone")); });
  EXPECT_EQ(lost.code(), ErrorCode::peer_lost);
  EXPECT_STREQ(lost.what(), "member 1: gone");
  EXPECT_EQ(error_of([&] { rethrow(Error(ErrorCode::io, "full")); }).code(), ErrorCode::io);
  EXPECT_EQ(error_of([&] { rethrow(std::bad_alloc()); }).code(), ErrorCode::out_of_memory);
  EXPECT_EQ(message_of([&] { rethrow(5); }), "member 1: it threw something that is no std::exception");
  try {
    rethrow(std::runtime_error("broken"));
  } catch (Error const& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_state);
    EXPECT_THROW(std::rethrow_if_nested(error), std::runtime_error);
  }
}

}  // namespace
}  // namespace ddp::testing
