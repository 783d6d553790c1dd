// A rank has a context on its own GPU only, whatever thread does what. CUDA opens one on GPU 0 for threads
// that were given no device.
#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "ddp/checkpoint/checkpoint.hpp"
#include "ddp/device/event.hpp"
#include "ddp/device/queries.hpp"
#include "support/contract/contract_memory.hpp"
#include "support/devices/gate.hpp"
#include "support/ranks/multi_process.hpp"

namespace ddp::testing {
namespace {

using ::testing::IsEmpty;

/// In a thread that was given no device.
template <class Work>
void aside(Work work) {
  std::thread(work).join();
}

TEST(Contexts, AThreadThatUsesTheRanksGpuOpensNoneElsewhere) {
  Device const device = world().device();
  aside([&] {
    auto const stream = make_compute_stream(device);
    auto const beside = make_comm_stream(device);
    Tensor const values = zeros(Shape{1000}, DType::f32, device);
    Tensor const staging = pinned_zeros(Shape{1000}, DType::f32);
    Tensor const result = pinned_zeros(Shape{1000}, DType::f32);
    staging.as<float>()[7] = 3;
    copy_elements(values, staging, *stream);
    Event begin(device);
    Event done(device);
    begin.record(*stream);
    done.record(*stream);
    done.block(*beside);
    beside->wait(*stream);
    copy_elements(result, values, *beside);
    HostStream host;
    host.wait(*beside);
    beside->wait(host);
    beside->synchronize();
    EXPECT_EQ(result.as<float>()[7], 3);
    EXPECT_TRUE(done.reached());
    EXPECT_GE(Event::milliseconds(begin, done), 0.0);
    EXPECT_GT(memory_info(device).total.value, 0U);
    EXPECT_GT(memory_stats(device).reserved.value, 0U);
  });
  EXPECT_THAT(contexts_elsewhere(), IsEmpty());
}

TEST(Contexts, AThreadThatCallsCollectivesOpensNoneElsewhere) {
  aside([] {
    Communicator& comm = world().communicator();
    auto const stream = make_comm_stream(comm.device());
    Elements<float> const values(comm, 1000, 1.0F);
    comm.all_reduce(values.put(*stream), ReduceOp::sum(), *stream);
    EXPECT_EQ(values.fetch(*stream)[7], static_cast<float>(comm.size()));
    auto const split = comm.split(all_ranks(comm.size()));
    split->barrier(*stream);
    stream->synchronize();
  });
  EXPECT_THAT(contexts_elsewhere(), IsEmpty());
}

TEST(Contexts, AThreadThatGoesThereAndBackOpensNoneElsewhere) {
  aside([] {
    { DeviceGuard const guard(world().device()); }
    static_cast<void>(current_device());
  });
  EXPECT_THAT(contexts_elsewhere(), IsEmpty());
}

TEST(Contexts, MemoryThatAnotherThreadGivesBackOpensNoneElsewhere) {
  auto pinned = std::make_unique<Tensor>(pinned_zeros(Shape{1000}, DType::f32));
  auto values = std::make_unique<Tensor>(zeros(Shape{1000}, DType::f32, world().device()));
  auto stream = make_comm_stream(world().device());
  aside([&] {
    pinned.reset();
    values.reset();
    stream.reset();
  });
  EXPECT_THAT(contexts_elsewhere(), IsEmpty());
}

TEST(Contexts, AHostStreamThatWaitsLongOpensNoneElsewhere) {
  auto const stream = make_comm_stream(world().device());
  Gate gate(*stream);
  HostStream host;
  host.wait(*stream);
  std::this_thread::sleep_for(std::chrono::milliseconds(2500));  // it asks whether the GPU is well
  gate.open();
  host.synchronize();
  EXPECT_THAT(contexts_elsewhere(), IsEmpty());
}

TEST(Contexts, ACheckpointOpensNoneElsewhere) {
  std::filesystem::path const folder =
      std::filesystem::temp_directory_path() / ("ddp-contexts-" + std::to_string(getppid()));
  {
    Tensor const weights = zeros(Shape{1000}, DType::f32, world().device());
    Checkpoint checkpoint(world(), folder, {.model = {{"weights", weights}}, .optimizer = {}, .rank = {}});
    checkpoint.save({.step = 1});
    checkpoint.wait();
    EXPECT_TRUE(checkpoint.restore());
  }
  world().barrier();
  if (world().rank() == 0) std::filesystem::remove_all(folder);
  EXPECT_THAT(contexts_elsewhere(), IsEmpty());
}

}  // namespace
}  // namespace ddp::testing
