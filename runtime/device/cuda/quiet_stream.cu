// A stream whose waits do not slow down another one.
//
// A GPU takes work from a few hardware queues, over which CUDA spreads streams. While a kernel in one queue
// waits for an event, each launch from some of the others takes longer: 1.1 to 1.6 µs on an H100
// (docs/measurements.md). Which queues disturb each other CUDA does not tell, so candidates are tried.
#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"
#include "ddp/device/cuda_stream.hpp"
#include "ddp/device/device_guard.hpp"
#include "ddp/device/memory.hpp"
#include "device/cuda/backend.hpp"
#include "device/cuda/check.hpp"
#include "device/cuda/load_kernel.hpp"

namespace ddp::cuda {
namespace {

constexpr int kCandidates = 8;
constexpr int kLaunches = 64;                       // timed ones of a trial
constexpr int kTrials = 3;                          // the fastest counts: other work only adds
constexpr float kQuiet = 1.2F;                      // times what launches take while nothing waits
constexpr std::uint64_t kLongestHold = 50'000'000;  // ns

// Holds the stream until the host has enqueued all of a trial.
__global__ void hold(std::uint32_t const volatile* let_go) {
  std::uint64_t begin = 0;
  std::uint64_t now = 0;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  } while (*let_go == 0 && now - begin < kLongestHold);
}

__global__ void do_nothing() {}

class Trial {
 public:
  explicit Trial(CudaStream& compute) : compute_(compute), let_go_(ddp::pinned_zeros(Shape{1}, DType::i32)) {
    load_kernel(&hold);
    load_kernel(&do_nothing);
    for (cudaEvent_t* const event : {&begin_, &end_}) check(cudaEventCreate(event), "making an event");
  }
  ~Trial() {
    for (cudaEvent_t const event : {begin_, end_}) static_cast<void>(cudaEventDestroy(event));
  }
  Trial(Trial const&) = delete;
  Trial& operator=(Trial const&) = delete;

  /// How many µs a launch on the computing stream takes while `waiting` waits for it. Null: while none does.
  [[nodiscard]] float microseconds(CudaStream* waiting) {
    float best = std::numeric_limits<float>::max();
    for (int trial = 0; trial < kTrials; ++trial) best = std::min(best, once(waiting));
    return best * 1000 / kLaunches;
  }

 private:
  float once(CudaStream* waiting) {
    auto* const word = static_cast<std::uint32_t*>(let_go_.view().data);
    std::atomic_ref(*word).store(0);
    hold<<<1, 1, 0, compute_.handle()>>>(word);
    check(cudaEventRecord(begin_, compute_.handle()), "recording an event");
    for (int i = 0; i < kLaunches; ++i) do_nothing<<<1, 32, 0, compute_.handle()>>>();
    check(cudaEventRecord(end_, compute_.handle()), "recording an event");
    if (waiting != nullptr) {
      check(cudaStreamWaitEvent(waiting->handle(), end_), "waiting for an event");
      do_nothing<<<1, 32, 0, waiting->handle()>>>();
    }
    std::atomic_ref(*word).store(1);
    check(cudaGetLastError(), "trying a stream");
    (waiting != nullptr ? *waiting : compute_).synchronize();
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin_, end_), "timing a stream");
    return milliseconds;
  }

  CudaStream& compute_;
  Tensor let_go_;  // pinned
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

}  // namespace

std::unique_ptr<Stream> make_comm_stream(Stream& stream) {
  CudaStream& compute = cuda_stream(stream);
  DeviceGuard const guard(compute.device());
  std::vector<std::unique_ptr<CudaStream>> tried;  // kept, so that CUDA gives the next one another queue
  auto const candidate = [&] {
    return std::make_unique<CudaStream>(compute.device(), CudaStream::Kind::communication);
  };
  if (compute.is_capturing()) return candidate();
  compute.synchronize();
  Trial trial(compute);
  float const undisturbed = trial.microseconds(nullptr);
  std::unique_ptr<CudaStream> best;
  float least = std::numeric_limits<float>::max();
  for (int i = 0; i < kCandidates && least > kQuiet * undisturbed; ++i) {
    auto next = candidate();
    float const disturbed = trial.microseconds(next.get());
    if (disturbed < least) {
      least = disturbed;
      std::swap(best, next);
    }
    if (next) tried.push_back(std::move(next));
  }
  log(LogLevel::debug,
      text("a launch on a stream of ", compute.device(), " takes ", undisturbed, " us, and ", least,
           " us while the communication stream waits for it; streams tried: ", tried.size() + 1));
  return best;
}

}  // namespace ddp::cuda
