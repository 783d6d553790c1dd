// A sharded optimizer (R25): the numbers of a plain one, a part of its state, and what cannot be.
#include <gmock/gmock.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/errors.hpp"
#include "support/models/sharded_training.hpp"

namespace ddp::testing {
namespace {

using ::testing::HasSubstr;
using Options = DistributedDataParallelOptions;

std::vector<ShardedWay> ways() {
  std::vector<ShardedWay> all{{.name = "plain"}};
  all.push_back({.name = "sum", .options = {.reduction = Options::Reduction::sum}});
  all.push_back({.name = "weights", .weights = true});
  all.push_back({.name = "micro-steps", .micro_steps = 3});
  all.push_back({.name = "unused", .leaves_out = true});
  all.push_back({.name = "flag", .options = {.nonfinite = Options::Nonfinite::flag}});
  all.push_back({.name = "statistics", .options = {.statistics = true}});
  all.push_back({.name = "bf16 on the wire", .options = {.reduce_dtype = DType::bf16}});
  all.push_back({.name = "clip", .options = {.clip_norm = 0.5}});
  all.push_back({.name = "clip, flag",
                 .options = {.nonfinite = Options::Nonfinite::flag, .clip_norm = 0.5},
                 .weights = true});
  all.push_back({.name = "verify", .options = {.verify_every = 2}});
  all.push_back({.name = "deterministic", .options = {.deterministic = true}});
  all.push_back({.name = "uneven", .options = {.uneven = Options::Uneven::divide_by_live}});
  return all;
}

TEST(Sharding, R25TheNumbersArePlainOnesToTheBit) {
  bool const is_nccl = world().communicator().backend() == "nccl";
  for (ShardedWay way : ways()) {
    // In bf16 such sums differ too much for a bound, so they are made in rank order.
    if (is_nccl && world().size() > 2 && way.options.reduce_dtype) way.options.deterministic = true;
    auto const plain = train_sharded<float>(way, Updates::plain);
    EXPECT_NE(plain[0][0], plain[0][1]);
    for (Updates const updates : {Updates::in_backward, Updates::behind}) {
      expect_plain_numbers(way, train_sharded<float>(way, updates), plain, name_of(updates));
    }
  }
}

TEST(Sharding, R25SixteenBitModelsKeepTheirMastersInTheSlices) {
  ShardedWay const way{.name = "bf16", .options = {.reduce_dtype = DType::f32}};
  auto const plain = train_sharded<bfloat16>(way, Updates::plain);
  auto const sharded = train_sharded<bfloat16>(way, Updates::in_backward);
  for (std::size_t p = 0; p < plain.size(); ++p) {
    for (std::size_t i = 0; i < plain[p].size(); ++i) {
      ASSERT_EQ(static_cast<float>(sharded[p][i]), static_cast<float>(plain[p][i])) << p << ' ' << i;
    }
  }
}

Options sharded(Options options = {}) {
  options.sharding = Sharding::optimizer;
  options.bucket_bytes = 4000_B;
  options.first_bucket_bytes = 1000_B;
  return options;
}

TEST(Sharding, R25EveryElementIsInOneSliceOfOneRankAndRanksHaveEquallyMany) {
  ShardedModel<float> model(kShardedCounts);
  DistributedDataParallel ddp(world(), model.parameters(), sharded());
  std::vector<std::vector<float>> owners;
  for (std::size_t const count : kShardedCounts) owners.emplace_back(count);
  std::size_t own = 0;
  std::size_t all = 0;
  for (std::size_t const count : kShardedCounts) all += count;
  auto const* const arena = static_cast<float const*>(model.value_at(0).view().data);
  for (Slice const& slice : ddp.slices()) {
    EXPECT_EQ(slice.index, static_cast<std::size_t>(&slice - ddp.slices().data()));
    EXPECT_EQ(slice.values.count(), slice.gradient.count());
    own += slice.values.count();
    for (BucketSlice const& piece : slice.pieces) {
      EXPECT_EQ(piece.parameter % 2, slice.group);
      for (std::size_t i = 0; i < piece.count; ++i) owners[piece.parameter][piece.parameter_offset + i] += 1;
      EXPECT_EQ(
          static_cast<float const*>(slice.values.data) + piece.bucket_offset,
          static_cast<float const*>(model.value_at(piece.parameter).view().data) + piece.parameter_offset);
      EXPECT_EQ(
          static_cast<float const*>(slice.gradient.data) + piece.bucket_offset,
          static_cast<float const*>(model.gradient_at(piece.parameter).view().data) + piece.parameter_offset);
    }
  }
  EXPECT_NE(arena, nullptr);
  for (auto& owned : owners) {
    if (owned.empty()) continue;
    Tensor const sum = zeros(Shape{owned.size()}, DType::f32, world().device());
    copy_elements(sum, view_of(std::span(owned)), world().stream());
    world().communicator().all_reduce(sum, ReduceOp::sum(), world().stream());
    copy_elements(view_of(std::span(owned)), sum, world().stream());
    world().stream().synchronize();
    EXPECT_THAT(owned, ::testing::Each(1.0F));
  }
  auto const ranks = static_cast<std::size_t>(world().size());
  std::size_t const most = all / ranks + ddp.plan().buckets().size() * (BucketPlan::kAlignment + 4);
  EXPECT_LE(own, most) << "of " << all << " in " << ddp.plan().buckets().size() << " buckets";
}

TEST(Sharding, R25WhatCannotBeCombinedIsRefusedWithTheReason) {
  ShardedModel<float> model({100, 7});
  auto const error = [&](Options options, bool with_bind = true) {
    std::vector<Parameter> parameters = model.parameters();
    if (!with_bind) parameters[1].bind_value = nullptr;
    for (std::size_t p = 0; p < parameters.size(); ++p) parameters[p].gradient = model.value_at(p);
    return message_of([&] { DistributedDataParallel(world(), parameters, options); });
  };
  EXPECT_THAT(error(sharded({.storage = GradientStorage::in_place})), HasSubstr("expected storage = arena"));
  EXPECT_THAT(error(sharded(), false), HasSubstr("parameter 1 \"p1\" has no bind_value"));
  DistributedDataParallel plain(world(), model.parameters());
  EXPECT_THAT(message_of([&] { static_cast<void>(plain.slices()); }), HasSubstr("set Options::sharding"));
  EXPECT_THAT(message_of([&] { plain.on_slice_ready([](Slice const&, Stream&) {}); }),
              HasSubstr("set Options::sharding"));
  DistributedDataParallel strict(world(), model.parameters(), sharded({.unused = Options::Unused::error}));
  EXPECT_THAT(message_of([&] { strict.on_slice_ready([](Slice const&, Stream&) {}); }),
              HasSubstr("a step may be refused at its end"));
  DistributedDataParallel finite(world(), model.parameters(),
                                 sharded({.nonfinite = Options::Nonfinite::error}));
  EXPECT_THAT(message_of([&] { finite.on_slice_ready([](Slice const&, Stream&) {}); }),
              HasSubstr("set unused to zero, nonfinite to flag"));
  DistributedDataParallel even(world(), model.parameters(), sharded({.uneven = Options::Uneven::error}));
  EXPECT_THAT(message_of([&] { even.on_slice_ready([](Slice const&, Stream&) {}); }),
              HasSubstr("uneven to divide_by_live"));
  DistributedDataParallel ddp(world(), model.parameters(), sharded());
  EXPECT_THAT(message_of([&] { ddp.join([] {}); }), HasSubstr("set Options::uneven"));
  EXPECT_THAT(message_of([&] { ddp.on_bucket_ready([](ReducedBucket const&) {}); }),
              HasSubstr("use on_slice_ready()"));
  EXPECT_THAT(message_of([&] {
                ddp.set_comm_hook({"mine", [](GradientBucket const&) {}});
              }),
              HasSubstr("set reduce_dtype"));
  EXPECT_THAT(message_of([&] { ddp.rebind_value(0, model.value_at(0)); }),
              HasSubstr("where bind_value says"));
}

TEST(Sharding, R25ASliceIsUpdatedOnceAStep) {
  ShardedModel<float> model({100, 7});
  DistributedDataParallel ddp(world(), model.parameters(), sharded());
  int calls = 0;
  SliceReady const update = [&](Slice const&, Stream&) { ++calls; };
  EXPECT_THAT(message_of([&] { ddp.update_slices(update); }),
              HasSubstr("before the first synchronised step"));
  auto const step = [&] {
    for (std::size_t p = model.count(); p-- > 0;) {
      model.fill_gradient(p, 0);
      ddp.gradient_ready(p);
    }
    EXPECT_THAT(message_of([&] { ddp.update_slices(update); }),
                HasSubstr("in the middle of a synchronised step"));
    ddp.synchronize();
  };
  step();
  ddp.update_slices(update);
  EXPECT_EQ(static_cast<std::size_t>(calls), ddp.slices().size());
  EXPECT_THAT(message_of([&] { ddp.update_slices(update); }),
              HasSubstr("update_slices() twice after synchronised step 0"));
  step();  // one that nobody updates is allowed, as after a gradient that is not finite
  step();
  ddp.update_slices(update);
  ddp.on_slice_ready(update);
  EXPECT_THAT(message_of([&] { ddp.update_slices(update); }), HasSubstr("use one of the two"));
}

TEST(Sharding, R12R25GroupsThatDifferAreOneErrorOnEveryRank) {
  if (world().size() < 2) GTEST_SKIP() << "one rank differs from nobody";
  ShardedModel<float> model({100, 7});
  auto parameters = model.parameters();
  if (world().rank() == 1) parameters[1].group = 0;
  auto const error = error_of<CommError>([&] { DistributedDataParallel(world(), parameters, sharded()); });
  EXPECT_EQ(error.code(), ErrorCode::mismatch);
}

TEST(Sharding, R25AnUpdateThatThrowsEndsTheStepOfEveryRank) {
  for (bool const behind : {false, true}) {
    ShardedModel<float> model({100, 7});
    auto ddp = std::make_unique<DistributedDataParallel>(world(), model.parameters(), sharded());
    SliceReady const update = [&](Slice const&, Stream&) {
      if (world().rank() == world().size() - 1) throw std::runtime_error("no memory for moments");
    };
    if (!behind) ddp->on_slice_ready(update);
    world().barrier();  // as soon as one rank is in its step, the others cannot register
    auto const error = message_of([&] {
      for (std::size_t p = model.count(); p-- > 0;) {
        model.fill_gradient(p, 0);
        ddp->gradient_ready(p);
      }
      ddp->synchronize();
      if (behind) ddp->update_slices(update);
      world().stream().synchronize();
    });
    EXPECT_THAT(error, HasSubstr("no memory for moments"));
    EXPECT_THAT(error, HasSubstr(behind ? "update_slices()" : "on_slice_ready()"));
  }
}

TEST(Sharding, R25AnotherModelMayTakeTheMemoryThatTheValuesHadBefore) {
  ShardedModel<float> model({100, 7});
  Tensor const before = model.value_at(0);
  DistributedDataParallel ddp(world(), model.parameters(), sharded());
  Tensor gradient;
  DistributedDataParallel const other(
      world(), {{"other", before, [&](Tensor const& place) { gradient = place; }, {}}});
  for (std::size_t p = model.count(); p-- > 0;) {
    model.fill_gradient(p, 0);
    ddp.gradient_ready(p);
  }
  EXPECT_NO_THROW(ddp.synchronize());
}

TEST(Sharding, R25ValuesThatOverlapAreRefused) {
  ShardedModel<float> model({100, 7});
  auto parameters = model.parameters();
  parameters[1].value = slice(model.value_at(0), 50, 7);
  EXPECT_THAT(message_of([&] { DistributedDataParallel(world(), parameters, sharded()); }),
              HasSubstr("the values of parameters \"p0\" and \"p1\" overlap"));
  Options options = sharded();
  options.buffers = {{"mean", slice(model.value_at(0), 99, 1)}};
  EXPECT_THAT(message_of([&] { DistributedDataParallel(world(), model.parameters(), options); }),
              HasSubstr("parameter \"p0\" and buffer \"mean\" overlap"));
}

}  // namespace
}  // namespace ddp::testing
