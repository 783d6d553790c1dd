// What GPU ranks say of their operations, compared, on a machine without GPUs.
#include <gmock/gmock.h>

#include "comm/nccl/calls/call_matcher.hpp"

namespace ddp::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Kind = OperationKind;

Fingerprint all_reduce(std::uint64_t count, DType dtype = DType::f32) {
  return {0, count, Kind::all_reduce, dtype, ReduceOp::Kind::sum, false, 0};
}
std::vector<std::size_t> one_host(int size) {
  return std::vector<std::size_t>(static_cast<std::size_t>(size));
}

// Ranks that share published calls, as processes do; rank r is rank r + 4 of the world.
class Ranks {
 public:
  explicit Ranks(int size) {
    auto const memory = PublishedCalls::make_memory(size);
    std::vector<Rank> world;
    for (int r = 0; r < size; ++r) world.emplace_back(r + 4);
    for (int r = 0; r < size; ++r) {
      boards_.push_back(std::make_shared<PublishedCalls>(memory, Rank{r}, one_host(size)));
      ledgers_.emplace_back(boards_.back(), world);
    }
  }
  PublishedCalls& calls(std::size_t rank) { return *boards_[rank]; }
  CallMatcher& matcher(std::size_t rank) { return ledgers_[rank]; }
  void all_call(Fingerprint const& operation) {
    for (auto const& calls : boards_) calls->publish(operation);
  }

 private:
  std::vector<std::shared_ptr<PublishedCalls>> boards_;
  std::vector<CallMatcher> ledgers_;
};

TEST(PublishedCalls, HoldsTheLatestOperationsOfEveryRank) {
  Ranks ranks(2);
  for (std::uint64_t i = 1; i <= PublishedCalls::kRecords + 10; ++i) ranks.calls(1).publish(all_reduce(i));
  EXPECT_EQ(ranks.calls(0).published(1), PublishedCalls::kRecords + 10);
  EXPECT_EQ(ranks.calls(0).collectives(1), PublishedCalls::kRecords + 10);
  auto const latest = ranks.calls(0).record(1, PublishedCalls::kRecords + 10);
  ASSERT_TRUE(latest);
  EXPECT_EQ(latest->count, PublishedCalls::kRecords + 10);
  EXPECT_EQ(latest->sequence, PublishedCalls::kRecords + 10);
  EXPECT_FALSE(ranks.calls(0).record(1, 11)) << "its place is written next";
  EXPECT_TRUE(ranks.calls(0).record(1, 12));
  EXPECT_FALSE(ranks.calls(0).record(1, PublishedCalls::kRecords + 11)) << "not called yet";
  EXPECT_EQ(ranks.calls(0).published(), 0U);
}

TEST(PublishedCalls, GivesBackWhatWasSaid) {
  Ranks ranks(3);
  Fingerprint said{0, 77, Kind::reduce, DType::bf16, ReduceOp::Kind::average, true, 2};
  ranks.calls(0).publish(all_reduce(1));
  ranks.calls(0).publish(said);
  said.sequence = 2;
  EXPECT_EQ(ranks.calls(2).record(0, 2), said);
}

Fingerprint head(std::uint64_t step, bool weighted, SinceLastStep since = {}) {
  Fingerprint first = all_reduce(1, DType::f64);
  first.begins = StepMark::of(step, weighted, since);
  return first;
}

// Ranks that did different things before it have begun the same step.
TEST(PublishedCalls, TellsWhatEachRankDidBeforeAStep) {
  Ranks ranks(2);
  ranks.calls(0).publish(head(5, true, SinceLastStep::of(true, false)));
  EXPECT_FALSE(ranks.calls(0).mark_of_this_step(1));
  ranks.calls(1).publish(head(5, true, SinceLastStep::of(false, false)));
  EXPECT_TRUE(ranks.calls(0).all_began_this_step());
  EXPECT_EQ(ranks.calls(0).called(), ranks.calls(1).called());
  auto const mine = ranks.calls(1).mark_of_this_step(1);
  auto const theirs = ranks.calls(1).mark_of_this_step(0);
  ASSERT_TRUE(mine && theirs);
  EXPECT_EQ(theirs->step(), 5U);
  EXPECT_TRUE(theirs->weighted());
  EXPECT_EQ(theirs->since().bits, SinceLastStep::of(true, false).bits);
  EXPECT_EQ(mine->since().bits, SinceLastStep::of(false, false).bits);
  EXPECT_EQ(ranks.calls(0).record(1, 1)->begins.since().bits, mine->since().bits);
  ranks.calls(0).publish(head(6, true));
  EXPECT_FALSE(ranks.calls(0).mark_of_this_step(1));
  EXPECT_EQ(ranks.calls(0).mark_of_this_step(0)->since().bits, 0);
}

TEST(PublishedCalls, TellsWhetherAllHaveBegunAStep) {
  Ranks ranks(2);
  EXPECT_TRUE(ranks.calls(0).all_began_this_step()) << "none";
  ranks.calls(0).publish(head(0, false));
  EXPECT_EQ(ranks.calls(0).step_began(), 1U);
  EXPECT_FALSE(ranks.calls(0).all_began_this_step());
  ranks.calls(1).publish(head(0, false));
  EXPECT_TRUE(ranks.calls(0).all_began_this_step());
  EXPECT_TRUE(ranks.calls(1).all_began_this_step());
  ranks.all_call(all_reduce(5));
  ranks.calls(1).publish(head(1, false));
  EXPECT_TRUE(ranks.calls(0).all_began_this_step()) << "rank 1 is in the next one";
  EXPECT_FALSE(ranks.calls(1).all_began_this_step());
  ranks.calls(0).publish(head(1, true));
  EXPECT_EQ(ranks.calls(0).step_began(), 3U);
  EXPECT_FALSE(ranks.calls(0).all_began_this_step()) << "one has a weight";
  Ranks others(2);
  others.calls(0).publish(all_reduce(5));
  others.calls(1).publish(all_reduce(6));
  others.all_call(head(0, false));
  EXPECT_FALSE(others.calls(0).all_began_this_step()) << "they differed before";
}

TEST(CallMatcher, RanksThatBeginStepsDifferentlyAreToldInTermsOfSteps) {
  Ranks weights(3);
  weights.calls(0).publish(head(7, false));
  weights.calls(1).publish(head(7, false));
  weights.calls(2).publish(head(7, true));
  Ranks steps(2);
  steps.calls(0).publish(head(7, true));
  steps.calls(1).publish(head(9, true));
  Ranks kinds(2);
  kinds.calls(0).publish(head(7, true));
  kinds.calls(1).publish(all_reduce(1, DType::f64));
  for (std::size_t rank : {0U, 1U}) {
    EXPECT_THAT(weights.matcher(rank).compare().value_or(Failure{}).detail,
                HasSubstr("set_weight() was called on rank 6 and not on rank 4 in step 7"));
    EXPECT_THAT(
        steps.matcher(rank).compare().value_or(Failure{}).detail,
        HasSubstr(
            "ranks are in different steps: rank 4 is in synchronised step 7, rank 5 in 9; does a rank"));
    EXPECT_THAT(kinds.matcher(rank).compare().value_or(Failure{}).detail,
                HasSubstr("rank 4 called all_reduce (sum) of f64[1], the first of step 7, rank 5 called "
                          "all_reduce (sum) of f64[1];"));
  }
}

TEST(CallMatcher, RanksThatCallTheSameAgree) {
  Ranks ranks(3);
  for (std::uint64_t i = 1; i <= 3 * PublishedCalls::kRecords; ++i) {
    ranks.all_call(all_reduce(i));
    if (i % 1000 == 0) {
      EXPECT_EQ(ranks.matcher(1).compare(), std::nullopt);
      EXPECT_EQ(ranks.matcher(1).agreed(), i);
    }
  }
}

TEST(CallMatcher, TheFirstDifferenceIsToldToEveryRankInTheSameWords) {
  Ranks ranks(3);
  ranks.all_call(all_reduce(5));
  ranks.calls(0).publish(all_reduce(1000));
  ranks.calls(1).publish(all_reduce(999));
  ranks.calls(2).publish(all_reduce(1000));
  for (std::size_t r = 0; r < 3; ++r) {
    auto const difference = ranks.matcher(r).compare();
    ASSERT_TRUE(difference);
    EXPECT_EQ(difference->code, ErrorCode::mismatch);
    EXPECT_THAT(difference->ranks, ElementsAre(Rank{4}, Rank{5}));
    EXPECT_THAT(difference->detail,
                HasSubstr("operation 2 differs between ranks: rank 4 called all_reduce (sum) of "
                          "f32[1000], rank 5 called all_reduce (sum) of f32[999]"));
    EXPECT_LE(ranks.matcher(r).agreed(), 1U);
  }
}

TEST(CallMatcher, ARankThatHasNotCalledItIsMissingAndNotCompared) {
  Ranks ranks(3);
  ranks.calls(0).publish(all_reduce(5));
  ranks.calls(2).publish(all_reduce(5));
  EXPECT_EQ(ranks.matcher(0).compare(), std::nullopt);
  EXPECT_EQ(ranks.matcher(0).agreed(), 0U);
  auto const said = ranks.calls(0).record(1);
  ASSERT_TRUE(said);
  EXPECT_THAT(ranks.matcher(0).missing(*said), ElementsAre(1U));
  ranks.calls(1).publish(all_reduce(5));
  EXPECT_EQ(ranks.matcher(0).compare(), std::nullopt);
  EXPECT_EQ(ranks.matcher(0).agreed(), 1U);
  EXPECT_THAT(ranks.matcher(0).missing(*said), IsEmpty());
}

TEST(CallMatcher, AgreesOnWhatAPeerHasCalledThoughItHasOverwrittenIt) {
  Ranks ranks(2);
  for (std::uint64_t i = 1; i <= PublishedCalls::kRecords + 904; ++i) ranks.calls(1).publish(all_reduce(i));
  ranks.calls(0).publish(all_reduce(1));
  for (std::size_t const rank : {0U, 1U}) {
    EXPECT_EQ(ranks.matcher(rank).compare(), std::nullopt);
    EXPECT_EQ(ranks.matcher(rank).agreed(), 1U) << rank;
  }
}

// A rank that looks late, when others have overwritten what they said, goes on with what is left.
TEST(CallMatcher, WhatIsOverwrittenIsNotCompared) {
  Ranks ranks(2);
  for (std::uint64_t i = 1; i <= 2 * PublishedCalls::kRecords; ++i) {
    ranks.calls(0).publish(all_reduce(i));
    ranks.calls(1).publish(all_reduce(i == 3 ? 99 : i));
  }
  EXPECT_EQ(ranks.matcher(0).compare(), std::nullopt);
  EXPECT_EQ(ranks.matcher(0).agreed(), 2 * PublishedCalls::kRecords);
}

TEST(CallMatcher, ARankOfAnotherHostThatWasNotAskedIsNotKnown) {
  auto const calls = std::make_shared<PublishedCalls>(PublishedCalls::make_memory(2), Rank{1},
                                                      std::vector<std::size_t>{0, 1});
  CallMatcher matcher(calls, {Rank{0}, Rank{1}});
  calls->publish(all_reduce(3));
  EXPECT_EQ(matcher.compare(), std::nullopt);
  EXPECT_EQ(matcher.agreed(), 1U);
  EXPECT_THAT(matcher.missing(calls->record(1).value()), IsEmpty());
}

}  // namespace
}  // namespace ddp::testing
