// What became of ranks, as a value and as a sentence: the words of each kind of failure are held here.
#include "ddp/core/failure.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <stdexcept>

#include "core/system/process_stat.hpp"
#include "support/ranks/lost_rank.hpp"

namespace ddp::testing {
namespace {

using Manner = Failure::Manner;
using ::testing::ElementsAre;

Failure noticed_by(int rank, Failure failure) {
  failure.operation = "operation 4, barrier";
  failure.by = Rank{rank};
  return failure;
}

// F1
TEST(Failure, ARankThatIsGoneIsNamedWithHowAndWhatItWasNeededFor) {
  EXPECT_EQ(to_string(noticed_by(0, killed(2, 9))),
            "rank 2 is gone (killed by signal 9 (SIGKILL)) while rank 0 was in operation 4, barrier");
  Failure ended = noticed_by(0, died(2, ""));
  ended.status = 3;
  EXPECT_EQ(to_string(ended), "rank 2 is gone (exited with code 3) while rank 0 was in operation 4, barrier");
  ended.status = 0;
  EXPECT_EQ(to_string(ended),
            "rank 2 is gone (exited with code 0 without leaving the group) while rank 0 was in operation 4, "
            "barrier");
  EXPECT_EQ(to_string(noticed_by(0, died(2, "its process on b has ended"))),
            "rank 2 is gone (its process on b has ended) while rank 0 was in operation 4, barrier");
  EXPECT_EQ(to_string(noticed_by(0, killed(2, 0))),
            "rank 2 is gone while rank 0 was in operation 4, barrier");
  Failure gone = noticed_by(0, left(2));
  gone.detail = "; if its data ended, call join()";
  EXPECT_EQ(to_string(gone),
            "rank 2 is gone (left the group) while rank 0 was in operation 4, barrier; if its data ended, "
            "call join()");
}

TEST(Failure, OfTheNewsAloneThatARankIsGone) {
  EXPECT_EQ(to_string(killed(1, 9)), "rank 1 died: killed by signal 9 (SIGKILL)");
  EXPECT_EQ(to_string(died(1, "exit code 3")), "rank 1 died: exit code 3");
  EXPECT_EQ(to_string(left(1)), "rank 1 has left: left the group");
  Failure asked = killed(1, 11);
  asked.operation = "control plane: get(\"key\")";
  EXPECT_EQ(to_string(asked), "control plane: get(\"key\"): rank 1 died: killed by signal 11 (SIGSEGV)");
}

TEST(Failure, ADeadlineSaysWhoWaitedHowLongInWhatAndForWhom) {
  Failure late = noticed_by(0, {.code = ErrorCode::timeout,
                                .manner = Manner::silent,
                                .ranks = {Rank{3}, Rank{1}},
                                .waited = std::chrono::milliseconds(300),
                                .detail = "; look at what those ranks are doing"});
  EXPECT_EQ(to_string(late),
            "rank 0 waited 0.3 s in operation 4, barrier for ranks 1, 3; look at what those ranks are doing");
  EXPECT_EQ(to_string(late, "this rank"),
            "this rank waited 0.3 s in operation 4, barrier for ranks 1, 3; look at what those ranks are "
            "doing");
  late.ranks = {Rank{3}};
  late.manner = Manner::stopped;
  late.detail = "; rank 3 is stopped";
  EXPECT_EQ(to_string(late), "rank 0 waited 0.3 s in operation 4, barrier for rank 3; rank 3 is stopped");
  late.ranks.clear();
  late.detail = ", which every rank has called";
  EXPECT_EQ(to_string(late), "rank 0 waited 0.3 s in operation 4, barrier, which every rank has called");
  late.by.reset();
  late.operation = "control plane: get(\"key\")";
  late.detail = "no rank has put it";
  EXPECT_EQ(to_string(late), "control plane: get(\"key\") timed out after 0.3 s: no rank has put it");
}

TEST(Failure, WhatIsOfNoKindIsItsDetail) {
  EXPECT_EQ(to_string(Failure{.code = ErrorCode::io, .detail = "disk gone"}), "disk gone");
  EXPECT_EQ(to_string(Failure{.manner = Manner::refused, .operation = "put", .detail = "no"}), "put: no");
  EXPECT_EQ(to_string(Failure{.manner = Manner::differs, .ranks = {Rank{1}}, .detail = "they differ"}),
            "they differ");
  Failure own = left(1);  // it tells of itself
  own.by = Rank{1};
  own.detail = "rank 1 ended its communicator";
  EXPECT_EQ(to_string(own), "rank 1 ended its communicator");
}

TEST(Failure, OnOtherRanksTheOneThatEndedTheGroupIsNamedFirst) {
  Failure heard = noticed_by(3, killed(2, 9));
  heard.ended_by = Rank{3};
  EXPECT_EQ(
      to_string(heard),
      "the group was ended by rank 3: rank 2 is gone (killed by signal 9 (SIGKILL)) while rank 3 was in "
      "operation 4, barrier");
}

TEST(Failure, EachMannerHasAName) {
  EXPECT_EQ(to_string(Manner::killed), "killed");
  EXPECT_EQ(to_string(Manner::differs), "differs");
}

TEST(Failure, AProgramAsksACommErrorWhichRanksItIsAbout) {
  try {
    throw CommError(noticed_by(0, killed(2, 9)));
  } catch (Error const& error) {
    EXPECT_EQ(error.code(), ErrorCode::peer_lost);
    EXPECT_STREQ(error.what(), to_string(failure_of(error)).c_str());
    Failure const& failure = dynamic_cast<CommError const&>(error).failure();
    EXPECT_THAT(failure.ranks, ElementsAre(Rank{2}));
    EXPECT_EQ(failure.manner, Manner::killed);
    EXPECT_EQ(failure.status, 9);
  }
}

TEST(Failure, EveryExceptionIsOne) {
  CommError const comm(ErrorCode::protocol, "no");
  EXPECT_EQ(failure_of(comm), (Failure{.code = ErrorCode::protocol, .detail = "no"}));
  EXPECT_EQ(failure_of(Error(ErrorCode::io, "disk")), (Failure{.code = ErrorCode::io, .detail = "disk"}));
  EXPECT_EQ(failure_of(std::runtime_error("what")), Failure{.detail = "what"});
}

// B8
TEST(Failure, ARankThatIsNotStoppedChangesNothing) {
  Failure const late{.code = ErrorCode::timeout, .manner = Manner::silent, .ranks = {Rank{1}, Rank{2}}};
  Failure looked = late;
  note_stopped(looked, Rank{2}, ::getpid());
  EXPECT_EQ(looked, late);
}

}  // namespace
}  // namespace ddp::testing
