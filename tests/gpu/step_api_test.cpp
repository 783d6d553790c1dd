// Invariant 4 and R5: what the host asks of the CUDA driver in a step, as CUPTI hears it: no wait, no
// allocation.
#include <cuda_runtime_api.h>
#include <cupti.h>
#include <gmock/gmock.h>

#include <map>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "ddp/ddp.hpp"
#include "device/cuda/stream/stream_state.hpp"
#include "support/models/device_toy.hpp"
#include "support/ranks/in_process_worlds.hpp"
#include "support/ranks/multi_process.hpp"

namespace ddp::testing {
namespace {

// Counts the driver's functions that one thread calls while it records.
class DriverLog {
 public:
  DriverLog() {
    EXPECT_EQ(cuptiSubscribe(&subscriber_, &on_call, this), CUPTI_SUCCESS);
    EXPECT_EQ(cuptiEnableDomain(1, subscriber_, CUPTI_CB_DOMAIN_DRIVER_API), CUPTI_SUCCESS);
  }
  ~DriverLog() { cuptiUnsubscribe(subscriber_); }
  DriverLog(DriverLog const&) = delete;
  DriverLog& operator=(DriverLog const&) = delete;

  void record(bool on) { recording_ = on; }
  [[nodiscard]] std::map<std::string, int> const& calls() const { return calls_; }
  /// Kernels of NCCL that were launched since the last call.
  [[nodiscard]] int nccl_launches() { return std::exchange(nccl_launches_, 0); }

 private:
  static void CUPTIAPI on_call(void* self, CUpti_CallbackDomain, CUpti_CallbackId, void const* data) {
    auto& log = *static_cast<DriverLog*>(self);
    auto const& call = *static_cast<CUpti_CallbackData const*>(data);
    if (std::this_thread::get_id() != log.thread_ || !log.recording_) return;
    if (call.callbackSite != CUPTI_API_ENTER) return;
    ++log.calls_[call.functionName];
    bool const launches = std::string_view(call.functionName).starts_with("cuLaunchKernel");
    if (launches && std::string_view(call.symbolName).find("ncclDevKernel") != std::string_view::npos) {
      ++log.nccl_launches_;
    }
  }

  CUpti_SubscriberHandle subscriber_ = nullptr;
  std::thread::id thread_ = std::this_thread::get_id();
  bool recording_ = false;
  std::map<std::string, int> calls_;
  int nccl_launches_ = 0;
};

bool waits_or_allocates(std::string const& function) {
  auto const contains = [&](char const* part) { return function.find(part) != std::string::npos; };
  bool const blocking_copy = contains("cuMemcpy") && !contains("Async");
  return contains("Synchronize") || contains("Query") || contains("cuMemAlloc") || contains("cuMemFree") ||
         contains("cuMemHostAlloc") || contains("cuMemCreate") || contains("cuMemMap") || blocking_copy;
}

// Each storage, average and weighted, and an accumulated step.
TEST(StepApi, AStepNeitherWaitsNorAllocates) {
  DriverLog log;
  int steps = 0;
  for (auto const storage : {GradientStorage::arena, GradientStorage::in_place, GradientStorage::copy}) {
    DeviceToy<float> model(world(), {100'000, 3000, 50, 70'000});
    DistributedDataParallelOptions options;
    options.storage = storage;
    options.bucket_bytes = options.first_bucket_bytes = 65536_B;
    Tensor const mean = zeros(Shape{300}, DType::f32, world().device());
    Tensor const counter = zeros(Shape{1}, DType::i64, world().device());
    options.buffers = {{"mean", mean}, {"counter", counter}};
    options.buffer_sync = BufferSync::average;
    DistributedDataParallel ddp(world(), model.parameters(), options);
    auto const step = [&](bool weighted) {
      ddp.mark_buffers_dirty();
      ddp.sync_buffers();
      if (weighted) ddp.set_weight(1.0 + world().rank().value());
      mark_all(ddp);
      ddp.synchronize();
    };
    for (bool const weighted : {false, true}) {  // the first uses set things up
      step(weighted);
      step(weighted);
    }
    world().stream().synchronize();
    log.record(true);
    for (int i = 0; i < 5; ++i) {
      {
        NoSyncGuard const guard = ddp.no_sync();
        mark_all(ddp);
        ddp.synchronize();
      }
      step(false);
      step(true);
      steps += 2;
    }
    log.record(false);
    world().stream().synchronize();
  }
  int all = 0;
  for (auto const& [function, count] : log.calls()) {
    all += count;
    if (world().rank() == 0) std::cout << count << " × " << function << "\n";
    EXPECT_FALSE(waits_or_allocates(function))
        << function << " was called " << count << " times in " << steps << " steps";
  }
  EXPECT_GT(all, steps) << "nothing was heard: the log does not work";
}

// Ranks use the last parameter in every other step, by turns, and nobody the second.
void expect_no_wait_for_gpus(int first_left_out) {
  DriverLog log;
  DeviceToy<float> model(world(), {100'000, 3000, 70'000});
  DistributedDataParallel ddp(world(), model.parameters(), DistributedDataParallelOptions{});
  auto const step = [&](int number) {
    bool const all_use_it = number < first_left_out;
    bool const uses_it = all_use_it || (number + world().rank().value()) % 2 == 0;
    if (uses_it) ddp.gradient_ready(2);
    if (all_use_it) ddp.gradient_ready(1);
    ddp.gradient_ready(0);
    ddp.synchronize();
    EXPECT_TRUE(ddp.has_gradient(0));
    EXPECT_EQ(ddp.has_gradient(1), all_use_it);
    EXPECT_EQ(ddp.has_gradient(2), uses_it || world().size() > 1);
  };
  for (int number = 0; number < 6; ++number) step(number);
  world().stream().synchronize();
  log.record(true);
  for (int number = 6; number < 12; ++number) step(number);
  log.record(false);
  world().stream().synchronize();
  int all = 0;
  for (auto const& [function, count] : log.calls()) {
    all += count;
    EXPECT_FALSE(waits_or_allocates(function)) << function << " was called " << count << " times in 6 steps";
  }
  EXPECT_GE(all, 6) << "nothing was heard: the log does not work";
  // A wait may ask memory, not CUDA: so the GPU gets some ten milliseconds of work before the averages.
  Tensor const from = zeros(Shape{1U << 28U}, DType::f32, world().device());
  Tensor const to = zeros(Shape{1U << 28U}, DType::f32, world().device());
  world().stream().synchronize();
  world().barrier();
  for (int copy = 0; copy < 40; ++copy) copy_elements(to, from, world().stream());
  step(12);
  EXPECT_EQ(cudaStreamQuery(cuda_stream(world().stream()).handle()), cudaErrorNotReady);
  world().stream().synchronize();
}

TEST(StepApi, R27WhatAnyRankUsedIsKnownWithoutAWaitForGpus) { expect_no_wait_for_gpus(0); }

TEST(StepApi, R27AlsoWhereItIsLeftOutInALaterStepFirst) { expect_no_wait_for_gpus(3); }

// Ranks with a GPU each: a bucket is one launch, the tail goes with the last one, and the head of a step with
// weights is one more. Buckets that become complete together, with the pieces of a large gradient, are one.
void expect_launches(std::vector<std::size_t> const& counts, int in_buckets, int launches) {
  DeviceToy<float> model(world(), counts);
  DistributedDataParallelOptions options;
  options.bucket_bytes = options.first_bucket_bytes = 65536_B;
  DistributedDataParallel ddp(world(), model.parameters(), options);
  DriverLog log;
  auto const launches_of_step = [&](bool weighted) {
    log.record(true);
    if (weighted) ddp.set_weight(1.0 + world().rank().value());
    mark_all(ddp);
    ddp.synchronize();
    log.record(false);
    return log.nccl_launches();
  };
  static_cast<void>(launches_of_step(false));  // after which buckets are rebuilt
  int const buckets = static_cast<int>(ddp.plan().buckets().size());
  EXPECT_EQ(buckets, in_buckets);
  EXPECT_EQ(launches_of_step(false), launches);
  EXPECT_EQ(launches_of_step(true), launches + 1);
  EXPECT_EQ(launches_of_step(false), launches);
}

TEST(StepApi, AStepHasAtMostOneLaunchOfNcclMoreThanBuckets) {
  if (world().size() == 1) GTEST_SKIP() << "a rank alone sends nothing";
  expect_launches({16'384, 16'384, 16'384, 16'384}, 4, 4);
  expect_launches({100'000, 3000, 50, 70'000}, 11, 2);
}

// The log hears what it must hear.
TEST(StepApi, TheLogHearsAWaitAndAnAllocation) {
  DriverLog log;
  log.record(true);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  Tensor const memory = zeros(Shape{1000}, DType::f32, world().device());
  log.record(false);
  bool heard = false;
  for (auto const& [function, count] : log.calls()) heard = heard || waits_or_allocates(function);
  EXPECT_TRUE(heard);
}

}  // namespace
}  // namespace ddp::testing
