// R11: ranks that run out of data at different steps.
#include <gmock/gmock.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "ddp/core/text.hpp"
#include "multi_process/uneven_steps.hpp"
#include "support/models/own_reducer.hpp"
#include "support/ranks/in_process_worlds.hpp"

namespace ddp::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using Uneven = DistributedDataParallelOptions::Uneven;

using StepsOf = int (*)(int rank);

DistributedDataParallelOptions options_of(Uneven uneven) {
  DistributedDataParallelOptions options{.bucket_bytes = 2000_B, .first_bucket_bytes = 500_B};
  options.uneven = uneven;
  return options;
}

float gradient_of(int rank, int step, std::size_t parameter) {
  return static_cast<float>(12 * (rank + 1) * (step + 1) + 60 * static_cast<int>(parameter));
}

void write_gradients(DeviceToy<float>& model, int step) {
  for (std::size_t p = 0; p < kCounts.size(); ++p) {
    model.write_gradient(p, std::vector<float>(kCounts[p], gradient_of(me(), step, p)));
  }
}

// The average of those that have data for the step, each with its weight.
float expected_average(StepsOf steps, int step, std::size_t parameter, bool by_all, bool weighted) {
  float sum = 0;
  float weights = 0;
  for (int r = 0; r < world().size(); ++r) {
    float const weight = weighted ? static_cast<float>(r + 1) : 1.0F;
    if (step < steps(r)) sum += weight * gradient_of(r, step, parameter);
    if (by_all || step < steps(r)) weights += weight;
  }
  return sum / weights;
}

void expect_averages(DeviceToy<float> const& model, StepsOf steps, int step, bool by_all, bool weighted) {
  for (std::size_t p = 0; p < kCounts.size(); ++p) {
    float const expected = expected_average(steps, step, p, by_all, weighted);
    EXPECT_THAT(model.gradient(p), Each(::testing::FloatNear(expected, expected * 1e-6F)))
        << "step " << step << ", parameter " << p;
  }
}

// An epoch for each of `epochs`, which says how many steps a rank has data for.
void train_unevenly(DistributedDataParallelOptions const& options, bool weighted,
                    std::vector<StepsOf> const& epochs) {
  SCOPED_TRACE(text(to_string(options.storage), ", uneven ", static_cast<int>(options.uneven)));
  DeviceToy<float> model(world(), kCounts);
  DistributedDataParallel ddp(world(), model.parameters(), options);
  bool const by_all = options.uneven == Uneven::divide_by_all;
  std::uint64_t done = 0;
  for (StepsOf const steps : epochs) {
    int most = 0;
    for (int r = 0; r < world().size(); ++r) most = std::max(most, steps(r));
    int step = 0;
    for (; step < steps(me()); ++step) {
      write_gradients(model, step);
      if (weighted) ddp.set_weight(me() + 1);
      for (std::size_t p = 0; p < kCounts.size(); ++p) ddp.gradient_ready(p);  // buckets are rebuilt
      ddp.synchronize();
      expect_averages(model, steps, step, by_all, weighted);
      ddp.zero_gradients();
    }
    ddp.join([&] {
      expect_averages(model, steps, step++, by_all, weighted);
      ddp.zero_gradients();
    });
    EXPECT_EQ(step, most) << "all leave together";
    done += static_cast<std::uint64_t>(step);
    EXPECT_EQ(ddp.steps(), done);
  }
}

void train_unevenly(Uneven uneven, bool weighted, GradientStorage storage) {
  DistributedDataParallelOptions options = options_of(uneven);
  options.storage = storage;
  train_unevenly(options, weighted, {steps_of, steps_of});
}

TEST(Join, R11TheOthersAverageIsOverThoseThatHaveData) {
  for (auto const storage : {GradientStorage::arena, GradientStorage::in_place, GradientStorage::copy}) {
    train_unevenly(Uneven::divide_by_live, false, storage);
  }
}
TEST(Join, R11OrOverAllRanks) { train_unevenly(Uneven::divide_by_all, false, GradientStorage::arena); }
TEST(Join, R11WeightsHold) { train_unevenly(Uneven::divide_by_live, true, GradientStorage::arena); }

// With rank 0, whose order of arrival makes the buckets. Then only rank 0 has data, nobody has, and all have.
TEST(Join, R11ARankMayHaveNoDataFromTheFirstStepOn) {
  StepsOf const only_last = [](int rank) { return rank == world().size() - 1 ? 3 : 0; };
  StepsOf const only_first = [](int rank) { return rank == 0 ? 2 : 0; };
  StepsOf const nobody = [](int) { return 0; };
  for (auto const storage : {GradientStorage::arena, GradientStorage::in_place, GradientStorage::copy}) {
    for (Uneven const uneven : {Uneven::divide_by_live, Uneven::divide_by_all}) {
      for (auto const unused :
           {DistributedDataParallelOptions::Unused::zero, DistributedDataParallelOptions::Unused::error}) {
        DistributedDataParallelOptions options = options_of(uneven);
        options.storage = storage;
        options.unused = unused;
        options.statistics = options.allow_repeated_ready =
            unused == DistributedDataParallelOptions::Unused::zero;
        train_unevenly(options, false, {only_last, only_first, nobody, steps_of});
        train_unevenly(options, false, {nobody, only_last, steps_of});
        if (uneven == Uneven::divide_by_live) train_unevenly(options, true, {only_last, steps_of});
      }
    }
  }
}

// Infinite: one element of them that is sent shows.
TEST(Join, R11R6MicroStepsThatNoStepHasSentAreLeftOut) {
  for (auto const storage : {GradientStorage::arena, GradientStorage::in_place, GradientStorage::copy}) {
    for (Uneven const uneven : {Uneven::divide_by_live, Uneven::divide_by_all}) {
      for (bool const from_source : {false, true}) {
        if (from_source && storage != GradientStorage::arena) continue;
        DeviceToy<float> model(world(), kCounts);
        DistributedDataParallelOptions options = options_of(uneven);
        options.storage = storage;
        DistributedDataParallel ddp(world(), model.parameters(), options);
        std::vector<Tensor> sources;
        for (std::size_t const count : kCounts)
          sources.push_back(zeros(Shape{count}, DType::f32, world().device()));
        for (int epoch = 0; epoch < 2; ++epoch) {
          int step = 0;
          auto const expect = [&] {
            expect_averages(model, steps_of, step++, uneven == Uneven::divide_by_all, false);
            ddp.zero_gradients();
          };
          while (step < steps_of(me())) {
            write_gradients(model, step);
            mark_all(ddp);
            ddp.synchronize();
            expect();
          }
          {
            NoSyncGuard const guard = ddp.no_sync();
            for (std::size_t p = 0; p < kCounts.size(); ++p) {
              model.write_gradient(p, std::vector<float>(kCounts[p], kInfinite));
              from_source ? ddp.gradient_ready(p, sources[p]) : ddp.gradient_ready(p);
            }
            ddp.synchronize();
          }
          ddp.join(expect);
          EXPECT_EQ(step, steps_of(world().size() - 1));
          EXPECT_EQ(ddp.has_gradient(0), true);
        }
      }
    }
  }
}

TEST(Join, R11SumsAreOfThoseThatHaveData) {
  DistributedDataParallelOptions options = options_of(Uneven::divide_by_live);
  options.reduction = DistributedDataParallelOptions::Reduction::sum;
  DeviceToy<float> model(world(), kCounts);
  DistributedDataParallel ddp(world(), model.parameters(), options);
  int step = 0;
  auto const expect = [&] {
    for (std::size_t p = 0; p < kCounts.size(); ++p) {
      float sum = 0;
      for (int r = 0; r < world().size(); ++r) sum += step < steps_of(r) ? gradient_of(r, step, p) : 0.0F;
      EXPECT_THAT(model.gradient(p), Each(sum)) << "step " << step << ", parameter " << p;
    }
    ++step;
  };
  while (step < steps_of(me())) {
    write_gradients(model, step);
    mark_all(ddp);
    ddp.synchronize();
    expect();
  }
  ddp.join(expect);
  EXPECT_EQ(step, steps_of(world().size() - 1));
}

// Rank 0 calls join() at once, the others begin a step. What each is told.
std::vector<std::string> told_without_a_step_of_rank_0(DistributedDataParallelOptions const& options,
                                                       bool weighted) {
  DeviceToy<float> model(world(), kCounts);
  OwnReducer reducer(model, options);
  return gathered(message_of([&] {
    if (me() == 0) {
      reducer->join([] { ADD_FAILURE() << "there is no step to follow"; }, {});
    } else {
      if (weighted) reducer->set_weight(2);
      reducer.train();
    }
  }));
}

TEST(Join, R11WithErrorEveryRankIsToldWhoHasNoDataForTheFirstStep) {
  if (world().size() == 1) return;
  EXPECT_THAT(told_without_a_step_of_rank_0(options_of(Uneven::error), false),
              Each(HasSubstr("rank 0 called join() before synchronised step 0")));
}

// A rank in join() does not know then whether the others give weights.
TEST(Join, R11R4WeightsWhereJoinGivesNoneAreAnErrorThatSaysSo) {
  if (world().size() == 1) return;
  DistributedDataParallelOptions sums = options_of(Uneven::divide_by_live);
  sums.reduction = DistributedDataParallelOptions::Reduction::sum;
  for (DistributedDataParallelOptions const& options : {options_of(Uneven::error), sums}) {
    EXPECT_THAT(
        told_without_a_step_of_rank_0(options, true),
        Each(AllOf(HasSubstr("set_weight() was called on"),
                   HasSubstr("A rank in join() gives a weight only where uneven is divide_by_live"))));
  }
}

TEST(Join, R11WithErrorEveryRankIsToldWhoHasNoData) {
  if (world().size() == 1) return;
  DeviceToy<float> model(world(), kCounts);
  OwnReducer reducer(model, options_of(Uneven::error));
  write_gradients(model, 0);
  reducer.step(kCounts.size());
  auto const messages = gathered(message_of([&] {
    if (me() == 0) {
      reducer->join([] { ADD_FAILURE() << "there is no step to follow"; }, {});
    } else {
      reducer.train();
    }
  }));
  EXPECT_THAT(messages, Each(messages[0]));
  EXPECT_THAT(messages[0],
              AllOf(HasSubstr("rank 0 called join() before synchronised step 1, for which others have data"),
                    HasSubstr("divide_by_live")));
}

TEST(Join, R11WithErrorRanksThatEndTogetherGoOn) {
  DeviceToy<float> model(world(), kCounts);
  DistributedDataParallel ddp(world(), model.parameters(), options_of(Uneven::error));
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (int step = 0; step < 2; ++step) {
      mark_all(ddp);
      ddp.synchronize();
    }
    ddp.join([] { ADD_FAILURE() << "there is no step to follow"; });
  }
  EXPECT_EQ(ddp.steps(), 4U);
}

// Buffers are sent between steps, so a rank without data sends its part too.
TEST(Join, R11WhatIsSentBetweenStepsGoesOn) {
  DeviceToy<float> model(world(), kCounts);
  Tensor const mean = zeros(Shape{10}, DType::f32, world().device());
  DistributedDataParallelOptions options = options_of(Uneven::divide_by_live);
  options.unused = DistributedDataParallelOptions::Unused::error;  // a rank without data uses nothing, and
                                                                   // that is no error
  options.buffers = {{"mean", mean}};
  DistributedDataParallel ddp(world(), model.parameters(), options);
  auto const send = [&] {
    ddp.mark_buffers_dirty();
    ddp.sync_buffers();
  };
  int updates = 0;
  for (int step = 0; step < steps_of(me()); ++step, ++updates) {
    send();
    write_gradients(model, step);
    mark_all(ddp);
    ddp.synchronize();
  }
  ddp.join([&] { ++updates; }, send);
  EXPECT_EQ(updates, steps_of(world().size() - 1));
}

TEST(Join, R11AtTheWrongTimeIsRefused) {
  DeviceToy<float> model(world(), kCounts);
  auto const nothing = [] {};
  DistributedDataParallel plain(world(), model.parameters());
  EXPECT_THAT(message_of([&] { plain.join(nothing); }), HasSubstr("join(): set Options::uneven"));
  DistributedDataParallel ddp(world(), model.parameters(), options_of(Uneven::divide_by_all));
  EXPECT_THAT(message_of([&] { ddp.join({}); }),
              HasSubstr("join(): expected what the program does after a step"));
  EXPECT_THAT(message_of([&] { ddp.set_weight(1); }), HasSubstr("set uneven to divide_by_live"));
  {
    NoSyncGuard const guard = ddp.no_sync();
    EXPECT_THAT(message_of([&] { ddp.join(nothing); }), HasSubstr("under no_sync()"));
  }
  ddp.gradient_ready(0);
  EXPECT_THAT(message_of([&] { ddp.join(nothing); }), HasSubstr("in the middle of a synchronised step"));
  ddp.synchronize();
  if (world().size() == 1) return;
  auto const messages = gathered(message_of([&] {
    DistributedDataParallel(world(), model.parameters(),
                            options_of(me() == 1 ? Uneven::error : Uneven::divide_by_all));
  }));
  EXPECT_THAT(messages, Each(AllOf(HasSubstr("uneven error"), HasSubstr("uneven divide_by_all"))));
}

}  // namespace
}  // namespace ddp::testing
