// R10: what sync_buffers() sends, with ranks that are threads.
#include <gmock/gmock.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "ddp/core/text.hpp"
#include "support/models/toy_model.hpp"
#include "support/ranks/in_process_worlds.hpp"

namespace ddp::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

// A rank's model with four buffers of floats, the last one empty.
struct BufferedModel {
  explicit BufferedModel(World const& world, BufferSync how = BufferSync::broadcast)
      : ddp(world, parameters.parameters(), {.buffers = list(), .buffer_sync = how}) {}

  std::vector<NamedTensor> list() {
    std::vector<NamedTensor> all;
    for (std::size_t b = 0; b < buffers.size(); ++b)
      all.push_back({text("b", b), view_of(std::span(buffers[b]))});
    return all;
  }
  void fill(float value) {
    for (auto& buffer : buffers) std::fill(buffer.begin(), buffer.end(), value);
  }
  // Of everything marked so far, and a step, which shows that ranks are still together.
  void sync_and_step(World const& world) {
    ddp.sync_buffers();
    do_step(world, parameters, ddp);
    ASSERT_EQ(parameters.gradients[1][3], ToyModel::average_gradient(1, 3, world.size()));
  }

  ToyModel parameters = ToyModel({40, 5});
  std::vector<std::vector<float>> buffers{
      std::vector<float>(7), std::vector<float>(1000), std::vector<float>(7), {}};
  DistributedDataParallel ddp;
};

TEST(Buffers, R10OnlyMarkedOnesTakeRankZerosValuesAndOnce) {
  on_ranks(3, [](World const& world) {
    BufferedModel model(world);
    auto const me = static_cast<float>(world.rank().value());
    for (int step = 0; step < 4; ++step) {
      float const mine = 10.0F * static_cast<float>(step) + me;
      float const first = 10.0F * static_cast<float>(step);
      model.fill(mine);
      model.ddp.mark_buffer_dirty(1);
      model.ddp.mark_buffer_dirty(3);
      if (step % 2 == 1) model.ddp.mark_buffer_dirty(2);
      model.sync_and_step(world);
      EXPECT_THAT(model.buffers[0], Each(mine));
      EXPECT_THAT(model.buffers[1], Each(first));
      EXPECT_THAT(model.buffers[2], Each(step % 2 == 1 ? first : mine));
      model.fill(mine);
      model.sync_and_step(world);
      EXPECT_THAT(model.buffers[1], Each(mine)) << "sent though nothing was marked";
    }
    model.fill(me);
    model.ddp.mark_buffers_dirty();
    model.sync_and_step(world);
    for (auto const& buffer : model.buffers) EXPECT_THAT(buffer, Each(0.0F));
    EXPECT_EQ(model.ddp.buffers().size(), 4U);
    EXPECT_EQ(model.ddp.buffers()[2].name, "b2");
  });
}

// Not even a message that says so: a rank may leave the call out.
TEST(Buffers, R10WithNothingMarkedNothingIsSent) {
  on_ranks(2, [](World const& world) {
    BufferedModel model(world);
    if (world.rank() == 0) model.ddp.sync_buffers();
    model.sync_and_step(world);
    model.ddp.mark_buffer_dirty(3);  // no elements
    if (world.rank() == 1) model.ddp.sync_buffers();
    model.sync_and_step(world);
  });
}

TEST(Buffers, R10UnderNoSyncNothingIsSentAndMarksStay) {
  on_ranks(2, [](World const& world) {
    BufferedModel model(world);
    auto const mine = static_cast<float>(world.rank().value() + 1);
    model.fill(mine);
    model.ddp.mark_buffer_dirty(0);
    {
      NoSyncGuard const guard = model.ddp.no_sync();
      model.ddp.sync_buffers();
      EXPECT_THAT(model.buffers[0], Each(mine));
      mark_all(model.ddp);
      model.ddp.synchronize();
    }
    model.sync_and_step(world);
    EXPECT_THAT(model.buffers[0], Each(1.0F));
    EXPECT_THAT(model.buffers[1], Each(mine));
  });
}

TEST(Buffers, R10NeverLeavesThemAlone) {
  on_ranks(2, [](World const& world) {
    BufferedModel model(world, BufferSync::never);
    auto const mine = static_cast<float>(world.rank().value() + 1);
    model.fill(mine);
    model.ddp.mark_buffers_dirty();
    model.sync_and_step(world);
    for (auto const& buffer : model.buffers) EXPECT_THAT(buffer, Each(mine));
  });
}

// Buffers of every type, on two devices. Ranks have 2 + 3 · rank in them.
struct MixedBuffers {
  explicit MixedBuffers(int rank) : value(static_cast<float>(2 + 3 * rank)) {}

  template <class T>
  NamedTensor add(std::vector<T>& elements, std::string name, bool elsewhere) const {
    std::fill(elements.begin(), elements.end(), T(value));
    TensorView view = view_of(std::span(elements));
    if (elsewhere) view.device = Device{DeviceKind::cpu, DeviceIndex{1}};
    return {std::move(name), view};
  }
  std::vector<NamedTensor> all() {
    return {add(doubles, "f64", false),  add(integers, "i64", true), add(floats, "f32", true),
            add(halves, "f16", false),   add(brains, "bf16", false), add(counts, "i32", false),
            add(more, "f32 more", true), add(flags, "u8", true)};
  }

  float value;
  std::vector<double> doubles = std::vector<double>(5);
  std::vector<float> floats = std::vector<float>(333);
  std::vector<float> more = std::vector<float>(9);
  std::vector<float16> halves = std::vector<float16>(7);
  std::vector<bfloat16> brains = std::vector<bfloat16>(1001);
  std::vector<std::int64_t> integers = std::vector<std::int64_t>(1);
  std::vector<std::int32_t> counts = std::vector<std::int32_t>(3);
  std::vector<std::uint8_t> flags = std::vector<std::uint8_t>(13);
};

template <class T>
void expect_all(std::vector<T> const& elements, float expected, char const* which) {
  for (T const element : elements) ASSERT_EQ(static_cast<float>(element), expected) << which;
}

TEST(Buffers, R10OfEveryTypeAndOnSeveralDevicesAreBroadcastOrAveraged) {
  for (BufferSync const how : {BufferSync::broadcast, BufferSync::average}) {
    on_ranks(3, [&](World const& world) {
      MixedBuffers mixed(0);
      ToyModel model({4});
      DistributedDataParallel ddp(world, model.parameters(), {.buffers = mixed.all(), .buffer_sync = how});
      for (int round = 0; round < 3; ++round) {
        mixed.value = static_cast<float>(2 + 3 * world.rank().value() + round);
        static_cast<void>(mixed.all());
        bool const some = round == 1;  // floats of the other device only
        if (some) {
          ddp.mark_buffer_dirty(2);
        } else {
          ddp.mark_buffers_dirty();
        }
        ddp.sync_buffers();
        auto const first = static_cast<float>(2 + round);
        float const mean = how == BufferSync::average ? first + 3 : first;
        expect_all(mixed.floats, mean, "f32");
        expect_all(mixed.doubles, some ? mixed.value : mean, "f64");
        expect_all(mixed.more, some ? mixed.value : mean, "f32 more");
        expect_all(mixed.halves, some ? mixed.value : mean, "f16");
        expect_all(mixed.brains, some ? mixed.value : mean, "bf16");
        expect_all(mixed.integers, some ? mixed.value : first, "i64");
        expect_all(mixed.counts, some ? mixed.value : first, "i32");
        expect_all(mixed.flags, some ? mixed.value : first, "u8");
      }
    });
  }
}

// 16-bit elements are added in 32 bits and rounded once: no bias, and no overflow on the way.
TEST(Buffers, R10AveragesOfSixteenBitsAreRoundedOnce) {
  on_ranks(3, [](World const& world) {
    std::vector<float16> buffer(3, float16(world.rank() == 2 ? 60000.0F : 40000.0F));
    ToyModel model({4});
    DistributedDataParallel ddp(
        world, model.parameters(),
        {.buffers = {{"mean", view_of(std::span(buffer))}}, .buffer_sync = BufferSync::average});
    buffer.assign(3, float16(world.rank() == 2 ? 60000.0F : 40000.0F));
    ddp.mark_buffers_dirty();
    ddp.sync_buffers();
    expect_all(buffer, static_cast<float>(float16((40000.0F + 40000.0F + 60000.0F) / 3)), "f16");
  });
}

TEST(Buffers, R10OtherMarksOnARankAreAMismatchOnEveryRankAndNobodysValues) {
  for (bool const marks_none : {false, true}) {
    on_ranks(3, [&](World const& world) {
      BufferedModel model(world);
      auto const mine = static_cast<float>(world.rank().value() + 1);
      model.fill(mine);
      // Two buffers of one size: only their numbers tell.
      if (world.rank() != 1) model.ddp.mark_buffer_dirty(0);
      if (world.rank() == 1 && !marks_none) model.ddp.mark_buffer_dirty(2);
      auto const error = error_of<CommError>([&] { model.sync_and_step(world); });
      EXPECT_EQ(error.code(), ErrorCode::mismatch) << error.what();
      EXPECT_THAT(error.what(), HasSubstr("rank 1"));
      for (auto const& buffer : model.buffers) EXPECT_THAT(buffer, Each(mine));
      EXPECT_THAT(message_of([&] { model.ddp.sync_buffers(); }), HasSubstr("cannot be used any more"));
    });
  }
}

TEST(Buffers, R10InTheMiddleOfAStepSyncIsAnErrorThatChangesNothing) {
  on_ranks(2, [](World const& world) {
    BufferedModel model(world);
    auto const mine = static_cast<float>(world.rank().value() + 1);
    model.fill(mine);
    model.ddp.gradient_ready(1);
    model.ddp.mark_buffer_dirty(0);  // as the forward pass may
    auto const error = error_of([&] { model.ddp.sync_buffers(); });
    EXPECT_EQ(error.code(), ErrorCode::invalid_state);
    EXPECT_THAT(error.what(), HasSubstr("sync_buffers() in the middle of a synchronised step"));
    EXPECT_THAT(model.buffers[0], Each(mine));
    model.ddp.gradient_ready(0);
    model.ddp.synchronize();
    model.sync_and_step(world);
    EXPECT_THAT(model.buffers[0], Each(1.0F)) << "the mark stayed";
  });
}

TEST(Buffers, R10ABufferThatIsNotThereIsNamed) {
  on_ranks(1, [](World const& world) {
    BufferedModel model(world);
    auto const error = error_of([&] { model.ddp.mark_buffer_dirty(4); });
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_STREQ(error.what(), "there is no buffer 4, this object has 4");
    model.fill(3.0F);
    model.ddp.mark_buffers_dirty();
    model.sync_and_step(world);  // a rank alone
    EXPECT_THAT(model.buffers[1], Each(3.0F));
    ToyModel plain({4});
    DistributedDataParallel ddp(world, plain.parameters());
    ddp.mark_buffers_dirty();
    ddp.sync_buffers();
    EXPECT_TRUE(ddp.buffers().empty());
  });
}

TEST(Buffers, R10R12RanksThatKeepThemAlikeInOtherWaysAreToldAtConstruction) {
  on_ranks(2, [](World const& world) {
    auto const how = world.rank() == 0 ? BufferSync::broadcast : BufferSync::average;
    EXPECT_THAT(message_of([&] { BufferedModel const model(world, how); }), HasSubstr("buffers average"));
  });
}

TEST(Buffers, R10R19ASubGroupTakesTheValuesOfItsFirstRank) {
  on_ranks(4, [](World whole) {
    int const me = whole.rank().value();
    auto const pair = whole.subgroup(std::vector<Rank>{Rank{me / 2 * 2}, Rank{me / 2 * 2 + 1}});
    BufferedModel model(*pair);
    model.fill(static_cast<float>(me));
    model.ddp.mark_buffer_dirty(1);
    model.ddp.sync_buffers();
    EXPECT_THAT(model.buffers[1], Each(static_cast<float>(me / 2 * 2)));
    EXPECT_THAT(model.buffers[0], Each(static_cast<float>(me)));
  });
}

}  // namespace
}  // namespace ddp::testing
