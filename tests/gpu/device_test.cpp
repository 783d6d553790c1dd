// The device layer on real GPUs.
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "ddp/device/cuda_stream.hpp"
#include "ddp/device/device_guard.hpp"
#include "ddp/device/event.hpp"
#include "ddp/device/logical_device.hpp"
#include "ddp/device/memory.hpp"
#include "ddp/device/tensor_ops.hpp"
#include "device/stream/stream_watch.hpp"
#include "support/devices/busy_gpu.hpp"
#include "support/devices/gate.hpp"
#include "support/errors.hpp"

namespace ddp::testing {
namespace {

using ::testing::HasSubstr;

std::vector<std::uint8_t> bytes_of(Tensor const& memory, Stream& stream) {
  std::vector<std::uint8_t> bytes(memory.view().bytes());
  copy_elements(view_of(std::span(bytes)), memory, stream);
  stream.synchronize();
  return bytes;
}

TEST(LogicalDevices, AreWhatCudaSees) {
  int count = 0;
  ASSERT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
  auto const all = logical_devices();
  ASSERT_EQ(all.size(), static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties{};
    ASSERT_EQ(cudaGetDeviceProperties(&properties, i), cudaSuccess);
    EXPECT_EQ(all[static_cast<std::size_t>(i)].visible, i);
    EXPECT_EQ(all[static_cast<std::size_t>(i)].name, properties.name);
    EXPECT_THAT(all[static_cast<std::size_t>(i)].uuid.value, ::testing::MatchesRegex("GPU-[0-9a-f-]+"));
  }
}

TEST(LogicalDevices, ANumberThatIsNotThereIsNamedWithWhatIs) {
  Device const none{DeviceKind::cuda, DeviceIndex{99}};
  auto const error = error_of<Error>([&] { static_cast<void>(logical_device(none)); });
  EXPECT_EQ(error.code(), ErrorCode::not_found);
  EXPECT_THAT(error.what(), HasSubstr("invalid device id 99"));
  EXPECT_THAT(error.what(), HasSubstr("cuda:0 = "));
}

TEST(DeviceGuard, RestoresTheDeviceBefore) {
  int before = -1;
  int after = -1;
  ASSERT_EQ(cudaGetDevice(&before), cudaSuccess);
  {
    DeviceGuard const guard(logical_devices().back().device);
    int inside = -1;
    ASSERT_EQ(cudaGetDevice(&inside), cudaSuccess);
    EXPECT_EQ(inside, logical_devices().back().visible);
  }
  ASSERT_EQ(cudaGetDevice(&after), cudaSuccess);
  EXPECT_EQ(before, after);
}

TEST(CudaStream, AHandleOfAnotherGpuIsRefused) {
  if (logical_devices().size() < 2) GTEST_SKIP() << "needs two GPUs";
  DeviceGuard const guard(logical_devices().back().device);
  cudaStream_t handle = nullptr;
  ASSERT_EQ(cudaStreamCreate(&handle), cudaSuccess);
  EXPECT_THAT(message_of([&] { CudaStream(kGpu, handle); }), HasSubstr("expected a stream of cuda:0"));
  EXPECT_EQ(CudaStream(logical_devices().back().device, handle).handle(), handle);
  EXPECT_EQ(CudaStream(kGpu, nullptr).handle(), nullptr) << "the default stream is any GPU's";
  cudaStreamDestroy(handle);
}

TEST(DeviceMemory, IsZeroedAndCountsAgainstTheCard) {
  auto const stream = make_compute_stream(kGpu);
  empty_cache(kGpu);  // what the pool keeps would be used first
  Bytes const before = memory_info(kGpu).free;
  Tensor const memory = zeros(Shape{kLarge}, DType::u8, kGpu);
  EXPECT_EQ(memory.view().device, kGpu);
  auto const bytes = bytes_of(memory, *stream);
  EXPECT_TRUE(std::all_of(bytes.begin(), bytes.end(), [](std::uint8_t byte) { return byte == 0; }));
  EXPECT_LE(memory_info(kGpu).free.value + kLarge, before.value);
  EXPECT_EQ(zeros(Shape{0}, DType::f32, kGpu).view().count(), 0U);
}

TEST(DeviceMemory, MoreThanTheCardHasIsOutOfMemoryWithWhatIsFree) {
  auto const error =
      error_of<Error>([] { static_cast<void>(zeros(Shape{std::size_t{1} << 50}, DType::u8, kGpu)); });
  EXPECT_EQ(error.code(), ErrorCode::out_of_memory);
  EXPECT_THAT(error.what(), HasSubstr("out of memory on cuda:0"));
  EXPECT_THAT(error.what(), HasSubstr("are free"));
  EXPECT_EQ(zeros(Shape{16}, DType::u8, kGpu).view().count(), 16U) << "the pool must go on";
}

TEST(CopyElements, CarriesEveryDtypeAtAnyElement) {
  auto const stream = make_compute_stream(kGpu);
  for (std::size_t d = 0; d < kDTypeCount; ++d) {
    auto const dtype = static_cast<DType>(d);
    for (std::size_t const count : {std::size_t{1}, std::size_t{3}, std::size_t{100'003}}) {
      Tensor const source = pinned_zeros(Shape{count}, dtype);
      Tensor const result = pinned_zeros(Shape{count + 2}, dtype);
      auto const bytes = [&](Tensor const& of, std::size_t first) {
        return std::span(static_cast<std::uint8_t*>(of.view().data) + first * size_of(dtype),
                         count * size_of(dtype));
      };
      for (std::size_t i = 0; auto& byte : bytes(source, 0)) byte = ++i % 3 == 1 ? 1 : 0;
      Tensor const near = zeros(Shape{count + 1}, dtype, kGpu);
      Tensor const far = zeros(Shape{count + 2}, dtype, kGpu);
      copy_elements(slice(near, 1, count), source, *stream);
      copy_elements(slice(far, 1, count), slice(near, 1, count), *stream);
      copy_elements(result, far, *stream);
      stream->synchronize();
      EXPECT_TRUE(std::ranges::equal(bytes(result, 1), bytes(source, 0))) << dtype << "[" << count << "]";
      EXPECT_EQ(bytes(result, 0)[0], 0) << dtype;
      EXPECT_EQ(bytes(result, 2).back(), 0) << dtype << ": nothing behind them";
    }
  }
}

TEST(CudaStream, RunsInOrderAndWaitsForAnother) {
  auto const first = make_compute_stream(kGpu);
  auto const second = make_comm_stream(kGpu);
  Tensor const memory = zeros(Shape{kLarge}, DType::u8, kGpu);
  Tensor const source = pinned_zeros(Shape{kLarge}, DType::u8);
  std::fill(source.as<std::uint8_t>().begin(), source.as<std::uint8_t>().end(), std::uint8_t{7});
  Tensor const result = pinned_zeros(Shape{kLarge}, DType::u8);
  for (int round = 0; round < 5; ++round) {
    keep_busy(memory, *first);
    copy_elements(memory, source, *first);
    second->wait(*first);
    copy_elements(result, memory, *second);
    zero_fill(memory, *second);
    first->wait(*second);
    keep_busy(memory, *first);
    second->synchronize();
    EXPECT_EQ(result.as<std::uint8_t>()[kLarge - 1], 7);
    std::fill(result.as<std::uint8_t>().begin(), result.as<std::uint8_t>().end(), std::uint8_t{0});
  }
  first->synchronize();
}

TEST(CudaStream, TheHostDoesNotWaitForWhatItEnqueues) {
  auto const stream = make_compute_stream(kGpu);
  auto const other = make_comm_stream(kGpu);
  Tensor const memory = zeros(Shape{std::size_t{1} << 30}, DType::u8, kGpu);
  stream->synchronize();
  Event done(kGpu);
  keep_busy(memory, *stream);
  other->wait(*stream);
  done.record(*other);
  EXPECT_FALSE(done.reached()) << "the host waited for 100 GiB of writes";
  other->synchronize();
  EXPECT_TRUE(done.reached());
}

// The last owner of what a module returned waits, in whatever thread it is.
TEST(CudaStream, SeveralThreadsMayWaitAtOnce) {
  auto const stream = make_compute_stream(kGpu);
  Tensor const memory = zeros(Shape{1024}, DType::u8, kGpu);
  std::vector<std::thread> threads;
  std::atomic<int> waits = 0;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 2'000; ++i, ++waits) stream->synchronize();
    });
  }
  for (int i = 0; i < 2'000; ++i) zero_fill(memory, *stream);
  for (std::thread& thread : threads) thread.join();
  stream->synchronize();
  EXPECT_EQ(waits, 8'000) << "a mark that another overtook would be waited for until the test's deadline";
}

TEST(CudaStream, AnEventHoldsAStreamForWhatIsInFrontOfItOnly) {
  auto const first = make_comm_stream(kGpu);
  auto const second = make_comm_stream(kGpu);
  Tensor const memory = zeros(Shape{kLarge}, DType::u8, kGpu);
  Tensor const source = pinned_zeros(Shape{kLarge}, DType::u8);
  Tensor const result = pinned_zeros(Shape{kLarge}, DType::u8);
  std::fill(source.as<std::uint8_t>().begin(), source.as<std::uint8_t>().end(), std::uint8_t{7});
  Event never(kGpu);
  never.block(*second);  // at once
  Event written(kGpu);
  keep_busy(memory, *first);
  copy_elements(memory, source, *first);
  written.record(*first);
  Gate gate(*first);
  Event end(kGpu);
  end.record(*first);
  written.block(*second);
  copy_elements(result, memory, *second);
  second->synchronize();
  EXPECT_EQ(result.as<std::uint8_t>()[kLarge - 1], 7);
  EXPECT_FALSE(end.reached());
  gate.open();
  first->synchronize();
  EXPECT_TRUE(end.reached());
}

TEST(CudaStream, TakesTurnsWithAStreamOfTheHost) {
  auto const stream = make_comm_stream(kGpu);
  HostStream host;
  Tensor const memory = zeros(Shape{4}, DType::i64, kGpu);
  Tensor const staging = pinned_zeros(Shape{4}, DType::i64);
  std::int64_t* const words = staging.as<std::int64_t>().data();
  for (int round = 0; round < 200; ++round) {
    copy_elements(staging, memory, *stream);
    host.wait(*stream);
    host.enqueue([words] { ++words[3]; });
    stream->wait(host);
    copy_elements(memory, staging, *stream);
  }
  stream->synchronize();
  host.synchronize();
  EXPECT_EQ(words[3], 200);
}

TEST(CudaStream, WaitsForEachOfSeveralStreamsOfTheHost) {
  auto const stream = make_comm_stream(kGpu);
  Gate slow(*stream);
  Event behind_slow(kGpu);
  behind_slow.record(*stream);
  HostStream fast;
  stream->wait(fast);
  Event behind_both(kGpu);
  behind_both.record(*stream);
  fast.synchronize();
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_FALSE(behind_slow.reached()) << "the fast one let it pass";
  EXPECT_FALSE(behind_both.reached());
  slow.open();
  stream->synchronize();
  EXPECT_TRUE(behind_both.reached());
}

TEST(CudaStream, AFailureOfTheHostsStreamReachesWhoWaitsForItAndHangsNothing) {
  auto const stream = make_comm_stream(kGpu);
  auto const behind = make_compute_stream(kGpu);
  HostStream host;
  host.enqueue([] { throw CommError(ErrorCode::peer_lost, "rank 3 is gone"); });
  stream->wait(host);
  behind->wait(*stream);
  EXPECT_THAT(message_of([&] { stream->synchronize(); }), HasSubstr("rank 3 is gone"));
  EXPECT_THAT(message_of([&] { behind->synchronize(); }), HasSubstr("rank 3 is gone"));
}

class FlaggedWatch final : public StreamWatch {
 public:
  explicit FlaggedWatch(bool over) : over_(over) {}
  void check() const override {
    if (!over_) throw CommError(ErrorCode::peer_lost, "rank 3 is gone");
  }
  [[nodiscard]] bool is_over() const noexcept override { return over_; }

 private:
  bool over_;
};

TEST(CudaStream, KeepsWatchesUntilTheyAreOverAndAnotherComes) {
  CudaStream stream(kGpu, CudaStream::Kind::communication);
  CudaStream behind(kGpu, CudaStream::Kind::compute);
  auto over = std::make_shared<FlaggedWatch const>(true);
  std::weak_ptr<FlaggedWatch const> const seen = over;
  stream.watch(std::move(over));
  EXPECT_FALSE(seen.expired());
  stream.watch(std::make_shared<FlaggedWatch const>(false));
  EXPECT_TRUE(seen.expired());
  behind.wait(stream);
  stream.watch(std::make_shared<FlaggedWatch const>(true));
  EXPECT_THAT(message_of([&] { behind.synchronize(); }), HasSubstr("rank 3 is gone"));
  EXPECT_THAT(message_of([&] { stream.synchronize(); }), HasSubstr("rank 3 is gone"));
}

class Counter final : public StreamWatch {
 public:
  void check() const override {}
  [[nodiscard]] std::uint64_t enqueued() const noexcept override { return enqueued_; }
  void settle(std::uint64_t through) const override { settled_ = through; }

  std::atomic<std::uint64_t> enqueued_ = 0;
  mutable std::atomic<std::uint64_t> settled_ = 99;
};

TEST(CudaStream, AWaitSettlesWhatWasEnqueuedWhenItWasAskedFor) {
  auto const stream = make_comm_stream(kGpu);
  auto const work = std::make_shared<Counter>();
  cuda_stream(*stream).watch(work);
  HostStream host;
  host.wait(*stream);
  host.synchronize();
  EXPECT_EQ(work->settled_, 0U) << "it may have more to settle than it counts";
  Gate gate(*stream);
  work->enqueued_ = 3;
  host.wait(*stream);
  work->enqueued_ = 5;
  gate.open();
  host.synchronize();
  EXPECT_EQ(work->settled_, 3U);
  stream->synchronize();
  EXPECT_EQ(work->settled_, 5U);
}

TEST(CudaStream, CommunicationGoesFirst) {
  auto const priority_of = [](Stream& stream) {
    int priority = 0;
    EXPECT_EQ(cudaStreamGetPriority(cuda_stream(stream).handle(), &priority), cudaSuccess);
    return priority;
  };
  DeviceGuard const guard(kGpu);
  int lowest = 0;
  int highest = 0;
  ASSERT_EQ(cudaDeviceGetStreamPriorityRange(&lowest, &highest), cudaSuccess);
  ASSERT_LT(highest, lowest) << "greater numbers wait for smaller ones";
  EXPECT_EQ(priority_of(*make_comm_stream(kGpu)), highest);
  EXPECT_EQ(priority_of(*make_compute_stream(kGpu)), lowest);
}

TEST(CudaStream, KeepsOrderWithTheDefaultStream) {
  auto const stream = make_compute_stream(kGpu);
  Tensor const memory = zeros(Shape{kLarge}, DType::u8, kGpu);
  keep_busy(memory, *stream);
  // As a program that names no stream does it.
  ASSERT_EQ(cudaMemsetAsync(memory.view().data, 5, kLarge, nullptr), cudaSuccess);
  EXPECT_EQ(bytes_of(memory, *stream)[kLarge - 1], 5);
}

TEST(CudaStream, TheDefaultStreamOfAGpuThatIsNotTheCurrentOne) {
  if (logical_devices().size() < 2) GTEST_SKIP() << "needs 2 GPUs";
  constexpr Device kOther{DeviceKind::cuda, DeviceIndex{1}};
  CudaStream by_default(kOther, nullptr);
  auto const beside = make_comm_stream(kOther);
  Tensor const memory = zeros(Shape{kLarge}, DType::u8, kOther);
  std::vector<std::uint8_t> ones(kLarge, 1);
  DeviceGuard const guard(kGpu);
  keep_busy(memory, by_default);
  copy_elements(memory, view_of(std::span(ones)), by_default);
  beside->wait(by_default);
  EXPECT_EQ(bytes_of(memory, *beside)[kLarge - 1], 1);
  keep_busy(memory, *beside);
  by_default.wait(*beside);
  Event done(kOther);
  done.record(by_default);
  by_default.synchronize();
  EXPECT_TRUE(done.reached());
  EXPECT_EQ(bytes_of(memory, by_default)[kLarge - 1], 0);
}

TEST(Event, MeasuresTheTimeOfTheGpu) {
  auto const stream = make_compute_stream(kGpu);
  Tensor const memory = zeros(Shape{kLarge}, DType::u8, kGpu);
  Event begin(kGpu);
  Event end(kGpu);
  EXPECT_FALSE(begin.reached());
  begin.record(*stream);
  keep_busy(memory, *stream);
  end.record(*stream);
  stream->synchronize();
  EXPECT_TRUE(end.reached());
  EXPECT_GT(Event::milliseconds(begin, end), 0.1);
}

}  // namespace
}  // namespace ddp::testing
