// R21.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>

#include "ddp/parallel/distributed_sampler.hpp"

namespace ddp {
namespace {

using Tail = DistributedSamplerOptions::Tail;

DistributedSampler sampler(std::size_t samples, int rank, int size, DistributedSamplerOptions options = {}) {
  return DistributedSampler(samples, Rank{rank}, size, options);
}

// What all ranks together take, by step.
std::vector<std::vector<std::size_t>> union_of_global_batches(std::size_t samples, int size,
                                                              std::size_t batch, std::uint64_t epoch,
                                                              std::size_t resume = 0) {
  std::vector<std::vector<std::size_t>> steps;
  for (int rank = 0; rank < size; ++rank) {
    auto mine = sampler(samples, rank, size, {.seed = 9});
    mine.set_epoch(epoch);
    mine.resume_at(resume);
    auto const batches = mine.global_batches(batch);
    steps.resize(batches.size());
    for (auto const& each : batches) {
      auto& step = steps[each.step - batches.front().step];
      step.insert(step.end(), each.begin(), each.end());
    }
  }
  return steps;
}

TEST(DistributedSampler, R21AnyNumberOfRanksTakesTheSameGlobalBatches) {
  auto const alone = union_of_global_batches(103, 1, 10, 2);
  EXPECT_EQ(alone.size(), 11U);
  for (int const size : {2, 3, 4, 16}) EXPECT_EQ(union_of_global_batches(103, size, 10, 2), alone) << size;
  std::set<std::size_t> seen;
  for (auto const& step : alone) seen.insert(step.begin(), step.end());
  EXPECT_EQ(seen.size(), 103U) << "each sample once";
}

TEST(DistributedSampler, GlobalShardsDifferByAtMostOne) {
  for (int rank = 0; rank < 3; ++rank) {
    auto mine = sampler(64, rank, 3);
    for (auto const& batch : mine.global_batches(20)) {
      std::size_t const whole = batch.step == 3 ? 4 : 20;
      EXPECT_GE(batch.size(), whole / 3);
      EXPECT_LE(batch.size(), whole / 3 + 1);
      EXPECT_EQ(batch.real, batch.size());
    }
  }
}

TEST(DistributedSampler, R21EpochsShuffleAnewAndSeedsRepeat) {
  EXPECT_EQ(union_of_global_batches(50, 2, 50, 3), union_of_global_batches(50, 2, 50, 3));
  EXPECT_NE(union_of_global_batches(50, 2, 50, 3), union_of_global_batches(50, 2, 50, 4));
  auto first = sampler(50, 0, 1, {.seed = 1});
  auto second = sampler(50, 0, 1, {.seed = 2});
  auto const a = first.global_batches(50);
  auto const b = second.global_batches(50);
  EXPECT_FALSE(std::equal(a[0].begin(), a[0].end(), b[0].begin()));
  auto plain = sampler(50, 0, 1, {.shuffle = false});
  auto const in_order = plain.global_batches(50);
  EXPECT_TRUE(std::is_sorted(in_order[0].begin(), in_order[0].end()));
}

TEST(DistributedSampler, TheShuffleIsUniform) {
  // Where sample 0 ends up, over many epochs: each of 5 places about equally often (chi-square, 4
  // degrees: 18.5 is the 99.9 % quantile).
  auto one = sampler(5, 0, 1);
  std::vector<double> places(5);
  constexpr int kEpochs = 5000;
  for (std::uint64_t epoch = 0; epoch < kEpochs; ++epoch) {
    one.set_epoch(epoch);
    auto const batch = one.global_batches(5)[0];
    places[static_cast<std::size_t>(std::find(batch.begin(), batch.end(), 0U) - batch.begin())] += 1;
  }
  double chi_square = 0;
  for (double const count : places)
    chi_square += (count - kEpochs / 5.0) * (count - kEpochs / 5.0) / (kEpochs / 5.0);
  EXPECT_LT(chi_square, 18.5);
}

TEST(DistributedSampler, R21PaddingFillsTheTailAndIsCountedOut) {
  std::size_t real = 0;
  std::multiset<std::size_t> seen;
  for (int rank = 0; rank < 4; ++rank) {
    auto mine = sampler(10, rank, 4, {.shuffle = false, .tail = Tail::pad});
    auto const batches = mine.batches(2);
    ASSERT_EQ(batches.size(), 2U) << "8 samples, then 2 and 6 of padding";
    for (auto const& batch : batches) {
      EXPECT_EQ(batch.size(), 2U);
      real += batch.real;
      for (std::size_t i = 0; i < batch.real; ++i) seen.insert(batch.indices[i]);
    }
    EXPECT_EQ(batches[1].real, rank == 0 ? 2U : 0U);
  }
  EXPECT_EQ(real, 10U);
  std::vector<std::size_t> expected(10);
  std::iota(expected.begin(), expected.end(), std::size_t{0});
  EXPECT_EQ(std::vector<std::size_t>(seen.begin(), seen.end()), expected);
}

TEST(DistributedSampler, R21DropLeavesAnIncompleteBatchOut) {
  for (int rank = 0; rank < 4; ++rank) {
    auto mine = sampler(10, rank, 4, {.tail = Tail::drop});
    EXPECT_EQ(mine.batches(2).size(), 1U);
    EXPECT_EQ(mine.global_batches(4).size(), 2U);
  }
}

TEST(DistributedSampler, PaddingLargerThanTheDataSetWrapsAround) {
  auto last = sampler(3, 3, 4, {.shuffle = false});
  auto const batches = last.batches(5);
  ASSERT_EQ(batches.size(), 1U);
  EXPECT_EQ(batches[0].size(), 5U);
  EXPECT_EQ(batches[0].real, 0U);
}

TEST(DistributedSampler, R21ResumesAtASamplePosition) {
  auto const whole = union_of_global_batches(103, 2, 10, 1);
  auto const rest = union_of_global_batches(103, 3, 10, 1, 40);  // on another number of ranks
  ASSERT_EQ(rest.size(), whole.size() - 4);
  EXPECT_TRUE(std::equal(rest.begin(), rest.end(), whole.begin() + 4));
}

TEST(DistributedSampler, R21StepsAfterAResumeGoOnCounting) {
  auto mine = sampler(18, 0, 3);
  mine.resume_at(6);
  EXPECT_EQ(mine.batches(2).front().step, 1U);
  EXPECT_EQ(mine.global_batches(3).front().step, 2U);
}

// Each stretch of steps is one of a membership; the step after it breaks, and is done again by the next.
TEST(DistributedSampler, R26EachSampleIsUsedOnceInAnEpochWhoeverIsLostAndJoins) {
  std::mt19937 random(26);
  auto const choose = [&](std::size_t low, std::size_t high) {
    return std::uniform_int_distribution<std::size_t>(low, high)(random);
  };
  for (int trial = 0; trial < 500; ++trial) {
    std::size_t const samples = choose(1, 200);
    std::size_t const batch = choose(1, 20);
    bool const global = choose(0, 1) == 1;
    std::vector<int> used(samples);
    for (std::size_t position = 0; position < samples;) {
      int const size = static_cast<int>(choose(1, 6));
      std::size_t done = SIZE_MAX;
      std::size_t taken = 0;
      for (int rank = 0; rank < size; ++rank) {
        auto mine = sampler(samples, rank, size, {.seed = 3});
        mine.set_epoch(static_cast<std::uint64_t>(trial));
        mine.resume_at(position);
        auto const steps = global ? mine.global_batches(batch) : mine.batches(batch);
        if (rank == 0) done = choose(0, steps.size());
        ASSERT_LE(done, steps.size()) << "as many steps on every rank";
        for (std::size_t step = 0; step < done; ++step) {
          for (Batch const& part : steps[step].parts(choose(1, 9))) {
            taken += part.real;
            for (std::size_t i = 0; i < part.real; ++i) ++used[part.indices[i]];
          }
        }
      }
      position += taken;
    }
    ASSERT_EQ(std::count(used.begin(), used.end(), 1), static_cast<std::ptrdiff_t>(samples)) << trial;
  }
}

TEST(DistributedSampler, R26PartsOfABatchAreItsSamplesInOrder) {
  auto last = sampler(10, 1, 2, {.shuffle = false});
  auto const batch = last.batches(7).back();  // samples 7 to 9, and 4 of padding
  auto const parts = batch.parts(2);
  ASSERT_EQ(parts.size(), 4U);
  std::vector<std::size_t> all;
  for (Batch const& part : parts) all.insert(all.end(), part.begin(), part.end());
  EXPECT_TRUE(std::equal(all.begin(), all.end(), batch.begin(), batch.end()));
  EXPECT_EQ(parts[0].real, 2U);
  EXPECT_EQ(parts[1].real, 1U);
  EXPECT_EQ(parts[2].real, 0U);
  EXPECT_EQ(parts[3].size(), 1U);
  EXPECT_EQ(batch.parts(SIZE_MAX).size(), 1U);
  EXPECT_EQ(Batch{}.parts(3).size(), 1U) << "every rank takes part in the step";
  EXPECT_THROW(static_cast<void>(batch.parts(0)), Error);
}

TEST(DistributedSampler, BatchesStayValidUntilTheNextEpoch) {
  auto mine = sampler(9, 1, 2, {.shuffle = false});
  auto const first = mine.batches(4);
  std::vector<std::size_t> const before(first.back().begin(), first.back().end());
  for (std::size_t size = 1; size < 9; ++size) static_cast<void>(mine.batches(size));
  EXPECT_TRUE(std::equal(before.begin(), before.end(), first.back().begin()));
}

TEST(DistributedSampler, RefusesWhatCannotBe) {
  EXPECT_THROW(sampler(0, 0, 1), Error);
  EXPECT_THROW(sampler(10, 2, 2), Error);
  auto mine = sampler(10, 0, 1);
  EXPECT_THROW(static_cast<void>(mine.batches(0)), Error);
  EXPECT_THROW(static_cast<void>(sampler(10, 0, 4).batches(SIZE_MAX / 2)), Error);
  EXPECT_EQ(mine.global_batches(SIZE_MAX).size(), 1U);
  EXPECT_THROW(mine.resume_at(11), Error);
}

}  // namespace
}  // namespace ddp
