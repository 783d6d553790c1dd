#include "bootstrap/control_store.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ddp/core/text.hpp"
#include "support/ranks/lost_rank.hpp"

namespace ddp {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Answers = ControlStore::Answers;
using Ticket = ControlStore::Ticket;

std::vector<Rank> ranks(std::initializer_list<int> values) {
  std::vector<Rank> group;
  for (int const value : values) group.emplace_back(value);
  return group;
}

using testing::left;

Failure died(int rank) { return testing::died(rank, "exit code 1"); }

// "0:3=a,b" is the answer to request 3 of rank 0; "0:3!timeout: message" a failure.
std::vector<std::string> lines(Answers const& answers) {
  std::vector<std::string> out;
  for (auto const& answer : answers) {
    std::string line = text(answer.to.rank, ":", answer.to.number);
    if (answer.failure) {
      line += text("!", to_string(answer.failure->code), ": ", to_string(*answer.failure));
    } else {
      std::vector<std::string> values;
      for (auto const& value : answer.values) values.push_back(*value);
      line += "=" + join(values, ",");
    }
    out.push_back(line);
  }
  return out;
}

TEST(ControlStore, AnswersAPutAndEveryGetThatWaitedForIt) {
  ControlStore rendezvous(3);
  EXPECT_THAT(lines(rendezvous.get({Rank{1}, 7}, "key")), IsEmpty());
  EXPECT_THAT(lines(rendezvous.get({Rank{2}, 8}, "key")), IsEmpty());
  EXPECT_THAT(lines(rendezvous.get({Rank{2}, 9}, "other")), IsEmpty());
  EXPECT_THAT(lines(rendezvous.put({Rank{0}, 1}, "key", "value")),
              ElementsAre("0:1=", "1:7=value", "2:8=value"));
  EXPECT_THAT(lines(rendezvous.get({Rank{0}, 2}, "key")), ElementsAre("0:2=value"));
  EXPECT_EQ(rendezvous.waiting(Rank{1}), 0U);
  EXPECT_EQ(rendezvous.waiting(Rank{2}), 1U);
}

TEST(ControlStore, SharesAValueInsteadOfCopyingIt) {
  ControlStore rendezvous(2);
  static_cast<void>(rendezvous.put({Rank{0}, 1}, "key", "value"));
  auto const first = rendezvous.get({Rank{0}, 2}, "key");
  auto const second = rendezvous.get({Rank{1}, 3}, "key");
  EXPECT_EQ(first[0].values[0].get(), second[0].values[0].get());
}

TEST(ControlStore, AnswersAGatherWhenTheLastMemberCalls) {
  ControlStore rendezvous(3);
  auto const group = ranks({2, 0, 1});
  EXPECT_THAT(rendezvous.all_gather({Rank{0}, 1}, "name", group, "a"), IsEmpty());
  EXPECT_THAT(rendezvous.all_gather({Rank{1}, 2}, "name", group, "b"), IsEmpty());
  EXPECT_THAT(lines(rendezvous.all_gather({Rank{2}, 3}, "name", group, "c")),
              ElementsAre("2:3=c,a,b", "0:1=c,a,b", "1:2=c,a,b"));
  EXPECT_EQ(rendezvous.stored_bytes(), 0U) << "nothing stays of a gather";
}

TEST(ControlStore, AGroupOfOneIsAnsweredAtOnce) {
  ControlStore rendezvous(2);
  EXPECT_THAT(lines(rendezvous.all_gather({Rank{1}, 1}, "self", ranks({1}), "x")), ElementsAre("1:1=x"));
}

TEST(ControlStore, AWithdrawnGatherNamesTheMissingAndForgetsTheCaller) {
  ControlStore rendezvous(4);
  auto const group = ranks({0, 1, 2, 3});
  static_cast<void>(rendezvous.all_gather({Rank{0}, 1}, "name", group, "a"));
  static_cast<void>(rendezvous.all_gather({Rank{2}, 2}, "name", group, "b"));
  EXPECT_THAT(lines(rendezvous.withdraw({Rank{0}, 1})),
              ElementsAre("0:1!timeout: 2 of 4 ranks are missing: 1, 3"));
  EXPECT_THAT(rendezvous.withdraw({Rank{0}, 1}), IsEmpty()) << "answered already";
  EXPECT_THAT(lines(rendezvous.withdraw({Rank{2}, 2})),
              ElementsAre("2:2!timeout: 3 of 4 ranks are missing: 0, 1, 3"));
  EXPECT_EQ(rendezvous.stored_bytes(), 0U);
}

TEST(ControlStore, ARankThatGaveUpCanTryAgain) {
  ControlStore rendezvous(2);
  auto const group = ranks({0, 1});
  static_cast<void>(rendezvous.all_gather({Rank{0}, 1}, "name", group, "old"));
  static_cast<void>(rendezvous.withdraw({Rank{0}, 1}));
  static_cast<void>(rendezvous.all_gather({Rank{0}, 2}, "name", group, "new"));
  EXPECT_THAT(lines(rendezvous.all_gather({Rank{1}, 3}, "name", group, "b")),
              ElementsAre("0:2=new,b", "1:3=new,b"));
}

TEST(ControlStore, WithdrawnGetsAreAnsweredOnce) {
  ControlStore rendezvous(2);
  static_cast<void>(rendezvous.get({Rank{0}, 1}, "key"));
  EXPECT_THAT(lines(rendezvous.withdraw({Rank{0}, 1})), ElementsAre("0:1!timeout: no rank has put it"));
  EXPECT_THAT(lines(rendezvous.put({Rank{1}, 2}, "key", "v")), ElementsAre("1:2="));
}

TEST(ControlStore, ADeathFailsGetsAndTheGathersThatHoldTheRank) {
  ControlStore rendezvous(4);
  static_cast<void>(rendezvous.get({Rank{0}, 1}, "key"));
  static_cast<void>(rendezvous.all_gather({Rank{1}, 2}, "with", ranks({1, 3}), ""));
  static_cast<void>(rendezvous.all_gather({Rank{2}, 3}, "without", ranks({2, 0}), ""));
  EXPECT_THAT(lines(rendezvous.lose(died(3))), ElementsAre("1:2!peer_lost: rank 3 died: exit code 1",
                                                           "0:1!peer_lost: rank 3 died: exit code 1"));
  EXPECT_THAT(lines(rendezvous.all_gather({Rank{0}, 4}, "without", ranks({2, 0}), "")),
              ElementsAre("2:3=,", "0:4=,"));
  EXPECT_THAT(lines(rendezvous.get({Rank{0}, 5}, "key")),
              ElementsAre("0:5!peer_lost: rank 3 died: exit code 1"));
  EXPECT_THAT(rendezvous.lose(died(3)), IsEmpty());
  EXPECT_THAT(rendezvous.lost(), SizeIs(1));
}

TEST(ControlStore, ADeathAlsoFailsAGatherThatTheRankHadReached) {
  ControlStore rendezvous(3);
  auto const group = ranks({0, 1, 2});
  static_cast<void>(rendezvous.all_gather({Rank{0}, 1}, "name", group, "a"));
  static_cast<void>(rendezvous.all_gather({Rank{1}, 2}, "name", group, "b"));
  auto const answers = rendezvous.lose(died(1));
  EXPECT_THAT(lines(answers), ElementsAre("0:1!peer_lost: rank 1 died: exit code 1",
                                          "1:2!peer_lost: rank 1 died: exit code 1"));
  EXPECT_THAT(lines(rendezvous.all_gather({Rank{2}, 3}, "name", group, "c")),
              ElementsAre("2:3!peer_lost: rank 1 died: exit code 1"));
}

TEST(ControlStore, TellsWhatRanksWaitFor) {
  ControlStore rendezvous(3);
  static_cast<void>(rendezvous.get({Rank{0}, 1}, "key"));
  static_cast<void>(rendezvous.all_gather({Rank{1}, 2}, "name", ranks({0, 1}), "a"));
  auto const answers = rendezvous.waits({Rank{2}, 3}, ranks({0, 1, 2}));
  ASSERT_THAT(answers, SizeIs(1));
  std::vector<std::string> names;
  for (auto const& value : answers[0].values) names.push_back(*value);
  EXPECT_THAT(names, ElementsAre("key", "name", ""));
}

TEST(ControlStore, LeavingFailsItsOwnWaitsButNoOthersGets) {
  ControlStore rendezvous(3);
  static_cast<void>(rendezvous.get({Rank{0}, 1}, "key"));
  static_cast<void>(rendezvous.get({Rank{1}, 2}, "key"));
  auto const answers = rendezvous.lose(left(1));
  ASSERT_THAT(answers, SizeIs(1));
  EXPECT_EQ(answers[0].to, (Ticket{Rank{1}, 2}));
  EXPECT_EQ(answers[0].failure->code, ErrorCode::invalid_state);
  EXPECT_THAT(lines(rendezvous.put({Rank{2}, 3}, "key", "v")), ElementsAre("2:3=", "0:1=v"));
  EXPECT_EQ(rendezvous.put({Rank{1}, 4}, "more", "").at(0).failure->code, ErrorCode::invalid_state);
}

TEST(ControlStore, AForgottenRankIsAnsweredNoMoreAndMissesInGathers) {
  ControlStore rendezvous(2);
  auto const group = ranks({0, 1});
  static_cast<void>(rendezvous.get({Rank{1}, 1}, "key"));
  static_cast<void>(rendezvous.all_gather({Rank{1}, 2}, "name", group, "stale"));
  rendezvous.forget(Rank{1});
  EXPECT_EQ(rendezvous.waiting(Rank{1}), 0U);
  EXPECT_THAT(lines(rendezvous.put({Rank{0}, 3}, "key", "v")), ElementsAre("0:3="));
  EXPECT_THAT(rendezvous.all_gather({Rank{0}, 4}, "name", group, "a"), IsEmpty());
  EXPECT_THAT(lines(rendezvous.withdraw({Rank{0}, 4})),
              ElementsAre("0:4!timeout: 1 of 2 ranks is missing: 1"));
}

TEST(ControlStore, OverlappingGroupsUnderOneNameAreAMismatchForAll) {
  ControlStore rendezvous(3);
  static_cast<void>(rendezvous.all_gather({Rank{0}, 1}, "name", ranks({0, 1}), ""));
  auto const answers = rendezvous.all_gather({Rank{1}, 2}, "name", ranks({1, 2}), "");
  ASSERT_THAT(answers, SizeIs(2));
  for (auto const& answer : answers) {
    EXPECT_EQ(answer.failure->code, ErrorCode::mismatch);
    EXPECT_THAT(to_string(*answer.failure),
                AllOf(HasSubstr("[0, 1]"), HasSubstr("[1, 2]"), HasSubstr("rank 1")));
  }
  EXPECT_EQ(rendezvous.stored_bytes(), 0U);
}

// L14: memory is bounded.
TEST(ControlStore, BoundsWhatAJobStores) {
  ControlStore rendezvous(2, {.keys = 3, .stored_bytes = 100, .waiting_per_rank = 2});
  auto const code = [](Answers const& answers) { return answers.at(0).failure->code; };
  EXPECT_FALSE(rendezvous.put({Rank{0}, 1}, "a", std::string(59, 'x')).at(0).failure);
  EXPECT_EQ(code(rendezvous.put({Rank{0}, 2}, "b", std::string(40, 'x'))), ErrorCode::out_of_memory);
  EXPECT_FALSE(rendezvous.put({Rank{0}, 3}, "b", std::string(39, 'x')).at(0).failure);
  EXPECT_EQ(rendezvous.stored_bytes(), 100U);
  EXPECT_EQ(code(rendezvous.all_gather({Rank{0}, 4}, "n", ranks({0, 1}), "")), ErrorCode::out_of_memory);
}

TEST(ControlStore, BoundsTheNumberOfKeysAndOfWaits) {
  ControlStore rendezvous(2, {.keys = 2, .stored_bytes = 1000, .waiting_per_rank = 2});
  EXPECT_FALSE(rendezvous.put({Rank{0}, 1}, "a", "").at(0).failure);
  EXPECT_FALSE(rendezvous.put({Rank{0}, 2}, "b", "").at(0).failure);
  EXPECT_EQ(rendezvous.put({Rank{0}, 3}, "c", "").at(0).failure->code, ErrorCode::out_of_memory);
  EXPECT_THAT(rendezvous.get({Rank{1}, 4}, "x"), IsEmpty());
  EXPECT_THAT(rendezvous.get({Rank{1}, 5}, "y"), IsEmpty());
  EXPECT_EQ(rendezvous.get({Rank{1}, 6}, "z").at(0).failure->code, ErrorCode::invalid_state);
  EXPECT_THAT(rendezvous.get({Rank{0}, 7}, "x"), IsEmpty()) << "the other rank may still wait";
  static_cast<void>(rendezvous.withdraw({Rank{1}, 5}));
  EXPECT_THAT(rendezvous.get({Rank{1}, 8}, "z"), IsEmpty());
}

}  // namespace
}  // namespace ddp
