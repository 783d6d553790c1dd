// R10 with ranks that are processes, on the world's device and on another one: a CPU beside the rank's GPU,
// or a second virtual CPU.
#include "parallel/ddp/buffer_sync.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "ddp/core/text.hpp"
#include "support/devices/elements.hpp"
#include "support/devices/other_device.hpp"
#include "support/errors.hpp"
#include "support/models/device_toy.hpp"
#include "support/models/own_reducer.hpp"
#include "support/ranks/in_process_worlds.hpp"
#include "support/ranks/multi_process.hpp"

namespace ddp::testing {
namespace {

using ::testing::Each;

float me() { return static_cast<float>(world().rank().value()); }

TEST(Buffers, R10MarkedOnesOfBothDevicesAreBroadcastOrAveragedBetweenSteps) {
  for (BufferSync const how : {BufferSync::broadcast, BufferSync::average}) {
    DeviceToy<float> model(world(), {3000, 70});
    std::vector<Tensor> memory;
    std::vector<NamedTensor> buffers;
    for (std::size_t const count : {std::size_t{70'001}, std::size_t{1}, std::size_t{64}, std::size_t{333}}) {
      Device const device = memory.size() % 2 == 0 ? world().device() : other_device();
      memory.push_back(zeros(Shape{count}, DType::f32, device));
      buffers.push_back({text("b", memory.size()), memory.back()});
    }
    DistributedDataParallel ddp(world(), model.parameters(), {.buffers = buffers, .buffer_sync = how});
    for (int step = 0; step < 6; ++step) {
      auto const first = 10.0F * static_cast<float>(step);
      for (Tensor const& buffer : memory) write(buffer, first + me());
      bool const all = step % 2 == 0;
      if (all) {
        ddp.mark_buffers_dirty();
      } else {
        ddp.mark_buffer_dirty(0);
        ddp.mark_buffer_dirty(1);
      }
      ddp.sync_buffers();
      float const mean = first + static_cast<float>(world().size() - 1) / 2;
      for (std::size_t b = 0; b < memory.size(); ++b) {
        float const synced = how == BufferSync::average ? mean : first;
        for (float const element : read(memory[b])) {
          ASSERT_NEAR(element, all || b < 2 ? synced : first + me(), 1e-5F)
              << "buffer " << b << ", step " << step;
        }
      }
      model.fill_gradients(world().rank().value());
      mark_all(ddp);
      ddp.synchronize();
      ASSERT_NEAR(model.gradient(1)[6], ToyModel::average_gradient(1, 6, world().size()), 1e-4F);
    }
  }
}

// Without the host: what follows on the compute stream sees the values that were sent, and what was enqueued
// before is what is sent.
TEST(Buffers, R10TheComputeStreamWaitsForThem) {
  constexpr std::size_t kSteps = 5;
  constexpr std::size_t kCount = std::size_t{1} << 16;
  auto const make = [] { return zeros(Shape{kCount}, DType::f32, world().device()); };
  Stream& stream = world().stream();
  DeviceToy<float> model(world(), {10});
  Tensor const buffer = make();
  Tensor const scratch = zeros(Shape{std::size_t{16} << 20}, DType::u8, world().device());
  std::vector<Tensor> written;
  std::vector<Tensor> seen;
  for (std::size_t step = 0; step < kSteps; ++step) {
    written.push_back(make());
    seen.push_back(make());
    write(written.back(), 100.0F * static_cast<float>(step) + me());
  }
  DistributedDataParallel ddp(world(), model.parameters(), {.buffers = {{"mean", buffer}}});
  for (std::size_t step = 0; step < kSteps; ++step) {
    for (int i = 0; i < 20; ++i) zero_fill(scratch, stream);  // a forward pass
    copy_elements(buffer, written[step], stream);
    ddp.mark_buffer_dirty(0);
    ddp.sync_buffers();
    copy_elements(seen[step], buffer, stream);
  }
  for (std::size_t step = 0; step < kSteps; ++step) {
    EXPECT_THAT(read(seen[step]), Each(100.0F * static_cast<float>(step))) << "step " << step;
  }
}

// At the latest when the step ends: no optimizer runs.
TEST(Buffers, R10OtherMarksOnARankEndTheStepOnEveryRankAndNoWeightsChange) {
  if (world().size() < 2) GTEST_SKIP() << "one rank differs from nobody";
  DeviceToy<float> model(world(), {10});
  Tensor const a = zeros(Shape{7}, DType::f32, world().device());
  Tensor const b = zeros(Shape{7}, DType::f32, world().device());
  std::unique_ptr<MarkedBuffers> buffers;
  OwnReducer reducer(model);
  reducer->between_steps("the test", [&](std::span<ReducerLane const> lanes) {
    buffers = std::make_unique<MarkedBuffers>(std::vector<NamedTensor>{{"a", a}, {"b", b}},
                                              BufferSync::broadcast, lanes);
  });
  auto const sync = [&](std::size_t marked) {
    buffers->mark(marked);
    reducer->between_steps("the test", [&](auto lanes) { buffers->send(lanes); });
  };
  sync(0);
  reducer.step(1);
  auto const before = model.value(0);
  auto const error = error_of([&] {
    sync(world().rank() == 1 ? 1 : 0);
    reducer.train();
  });
  EXPECT_EQ(error.code(), ErrorCode::mismatch) << error.what();
  EXPECT_EQ(model.value(0), before);
  EXPECT_NE(before[1], 0.0F) << "the optimizer would not show";
}

}  // namespace
}  // namespace ddp::testing
