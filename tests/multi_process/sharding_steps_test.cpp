// A sharded optimizer (R25) where a step is skipped or refused, where ranks run out of data, and beside
// others.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "device/cuda/backend.hpp"
#include "support/errors.hpp"
#include "support/models/sharded_training.hpp"

namespace ddp::testing {
namespace {

using ::testing::HasSubstr;
using Options = DistributedDataParallelOptions;

// Both ways to update, and what a step without an update must not have changed.
void expect_plain_numbers(ShardedWay way) {
  if (world().communicator().backend() == "nccl" && world().size() > 2 && way.options.reduce_dtype) {
    way.options.deterministic = true;
  }
  auto const plain = train_sharded<float>(way, Updates::plain);
  for (auto const& parameter : plain) {
    for (float const element : parameter) ASSERT_TRUE(std::isfinite(element)) << way.name;
  }
  for (Updates const updates : {Updates::in_backward, Updates::behind}) {
    expect_plain_numbers(way, train_sharded<float>(way, updates), plain, name_of(updates));
  }
}

TEST(Sharding, R25AFlaggedStepChangesNothingAndTheNextOnesArePlain) {
  std::vector<ShardedWay> ways{{.name = "flag"}};
  ways.push_back({.name = "sum", .options = {.reduction = Options::Reduction::sum}});
  ways.push_back({.name = "weights", .weights = true});
  ways.push_back({.name = "micro-steps", .micro_steps = 3});
  ways.push_back({.name = "unused", .leaves_out = true});
  ways.push_back({.name = "bf16 on the wire", .options = {.reduce_dtype = DType::bf16}});
  ways.push_back({.name = "clip", .options = {.clip_norm = 0.5}});
  ways.push_back({.name = "deterministic", .options = {.deterministic = true}});
  for (ShardedWay& way : ways) {
    way.options.nonfinite = Options::Nonfinite::flag;
    way.spoils = true;
    expect_plain_numbers(way);
  }
}

TEST(Sharding, R25AFlaggedStepOfASixteenBitModelChangesNothing) {
  ShardedWay const way{.name = "bf16",
                       .options = {.reduce_dtype = DType::f32, .nonfinite = Options::Nonfinite::flag},
                       .spoils = true};
  auto const plain = train_sharded<bfloat16>(way, Updates::plain);
  for (Updates const updates : {Updates::in_backward, Updates::behind}) {
    auto const found = train_sharded<bfloat16>(way, updates);
    for (std::size_t p = 0; p < plain.size(); ++p) {
      for (std::size_t i = 0; i < plain[p].size(); ++i) {
        ASSERT_EQ(static_cast<float>(found[p][i]), static_cast<float>(plain[p][i]))
            << name_of(updates) << ' ' << p << ' ' << i;
      }
    }
  }
}

// on_slice_ready() is refused.
TEST(Sharding, R25AStepThatIsRefusedChangesNothing) {
  ShardedWay const nonfinite{
      .name = "nonfinite", .options = {.nonfinite = Options::Nonfinite::error}, .spoils = true};
  ShardedWay const uneven{
      .name = "uneven", .options = {.uneven = Options::Uneven::error}, .ends_early = world().size() - 1};
  for (ShardedWay const& way : {nonfinite, uneven}) {
    if (way.ends_early >= 0 && world().size() == 1) continue;  // one rank has data for each of its steps
    std::vector<std::vector<std::vector<float>>> values;
    for (Updates const updates : {Updates::plain, Updates::behind}) {
      ShardedTraining<float> training(way, updates);
      EXPECT_THAT(message_of([&] { training.run(); }),
                  HasSubstr(way.spoils ? "with NaN or infinity in synchronised step 1: " : "called join()"));
      EXPECT_EQ(training.steps(), way.spoils ? 1 : kShardedSteps - 2);
      cuda::forget_failures(world().stream());  // or reading the values would throw the same error
      values.push_back(training.values());
      world().barrier();
    }
    expect_plain_numbers(way, values[1], values[0], "behind");
  }
}

TEST(Sharding, R25RanksThatRunOutOfDataGoOnWithTheirSlices) {
  using Uneven = Options::Uneven;
  std::vector<ShardedWay> ways{{.name = "by live", .options = {.uneven = Uneven::divide_by_live}}};
  ways.push_back({.name = "by all", .options = {.uneven = Uneven::divide_by_all}});
  ways.push_back({.name = "weights", .options = {.uneven = Uneven::divide_by_live}, .weights = true});
  ways.push_back({.name = "micro-steps", .options = {.uneven = Uneven::divide_by_live}, .micro_steps = 3});
  ways.push_back({.name = "clip", .options = {.uneven = Uneven::divide_by_live, .clip_norm = 0.5}});
  ways.push_back({.name = "flag",
                  .options = {.nonfinite = Options::Nonfinite::flag, .uneven = Uneven::divide_by_live},
                  .spoils = true});
  ways.push_back({.name = "flag, by all",
                  .options = {.nonfinite = Options::Nonfinite::flag, .uneven = Uneven::divide_by_all},
                  .spoils = true});
  for (ShardedWay& way : ways) {
    for (int const rank : {0, world().size() - 1}) {
      way.ends_early = rank;
      expect_plain_numbers(way);
    }
  }
}

// ---- beside other models

enum class Order { by_steps, by_gradients, by_passes };

void train_together(ShardedTraining<float>& one, ShardedTraining<float>& other, Order order) {
  auto const mark = [](ShardedTraining<float>& model, std::size_t p) {
    if (p < model.count()) model.mark(p);
  };
  std::size_t const most = std::max(one.count(), other.count());
  for (int step = 0; step < kShardedSteps; ++step) {
    one.begin();
    if (order != Order::by_steps) other.begin();
    for (std::size_t p = most; p-- > 0;) {
      mark(one, p);
      if (order == Order::by_gradients) mark(other, p);
    }
    if (order == Order::by_steps) {
      one.end();
      other.begin();
    }
    for (std::size_t p = most; order != Order::by_gradients && p-- > 0;) mark(other, p);
    if (order != Order::by_steps) one.end();
    other.end();
  }
}

TEST(Sharding, R25TwoModelsTrainBesideEachOther) {
  ShardedWay const one{.name = "one"};
  ShardedWay const other{.name = "other", .weights = true, .counts = {300, 17, 4000}};
  auto const plain_one = train_sharded<float>(one, Updates::plain);
  auto const plain_other = train_sharded<float>(other, Updates::plain);
  for (Order const order : {Order::by_steps, Order::by_gradients, Order::by_passes}) {
    for (Updates const first : {Updates::in_backward, Updates::behind}) {
      for (Updates const second : {Updates::in_backward, Updates::behind, Updates::plain}) {
        ShardedTraining<float> both[] = {{one, first}, {other, second}};
        train_together(both[0], both[1], order);
        expect_plain_numbers(one, both[0].values(), plain_one, name_of(first));
        expect_plain_numbers(other, both[1].values(), plain_other, name_of(second));
      }
    }
  }
}

// ---- forgotten updates

// The warning of forgotten updates, if one is printed meanwhile.
template <class Steps>
std::string warned(Steps const& steps) {
  ::testing::internal::CaptureStderr();
  steps();
  std::string const all = ::testing::internal::GetCapturedStderr();
  auto const begin = all.find("Options::sharding of ");
  return begin == std::string::npos ? "" : all.substr(begin);
}

TEST(Sharding, R25FirstStepsWithoutAnUpdateAreWarnedOfOnce) {
  SliceReady const nothing = [](Slice const&, Stream&) {};
  for (bool const flags : {false, true}) {
    ShardedModel<float> model({100, 7});
    Options options{.nonfinite = flags ? Options::Nonfinite::flag : Options::Nonfinite::ignore};
    options.sharding = Sharding::optimizer;
    DistributedDataParallel ddp(world(), model.parameters(), options);
    auto const steps = [&](int many, float spoilt) {
      for (int step = 0; step < many; ++step) {
        for (std::size_t p = model.count(); p-- > 0;) {
          model.fill_gradient(p, step, spoilt);
          ddp.gradient_ready(p);
        }
        ddp.synchronize();
      }
    };
    if (flags) {  // no update is expected behind these
      EXPECT_EQ(warned([&] { steps(12, std::numeric_limits<float>::infinity()); }), "");
    } else {
      EXPECT_EQ(warned([&] { steps(8, 0); }), "");
    }
    std::string const told = warned([&] { steps(4, 0); });
    if (world().rank() == 0) {
      EXPECT_THAT(told, HasSubstr("call update_slices() after each synchronize()"));
      EXPECT_THAT(told, HasSubstr(flags ? "behind the first 13," : "behind the first 8,"));
    } else {
      EXPECT_EQ(told, "");
    }
    EXPECT_EQ(warned([&] { steps(12, 0); }), "") << "a second time";
    ddp.update_slices(nothing);
  }
  for (bool const behind : {false, true}) {
    ShardedModel<float> model({100, 7});
    Options options;
    options.sharding = Sharding::optimizer;
    DistributedDataParallel ddp(world(), model.parameters(), options);
    if (!behind) ddp.on_slice_ready(nothing);
    EXPECT_EQ(warned([&] {
                for (int step = 0; step < 20; ++step) {
                  model.fill_gradient(0, step);
                  ddp.gradient_ready(0);
                  ddp.synchronize();
                  if (behind && step == 0) ddp.update_slices(nothing);
                }
              }),
              "");
  }
}

}  // namespace
}  // namespace ddp::testing
