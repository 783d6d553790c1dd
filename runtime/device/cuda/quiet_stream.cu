// A stream whose waits do not slow down another one.
//
// A GPU takes work from a few hardware queues, over which CUDA spreads streams. While a kernel in one queue
// waits for an event, each launch from some of the others takes longer: 1.1 to 1.6 µs on an H100
// (docs/measurements.md). Which queues disturb each other CUDA does not tell, so candidates are tried, as a
// training step uses them: the host runs ahead of short kernels. Launches that were all enqueued before the
// first of them began, and kernels shorter than a launch, do not show the difference.
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"
#include "ddp/device/cuda_stream.hpp"
#include "ddp/device/device_guard.hpp"
#include "device/cuda/backend.hpp"
#include "device/cuda/check.hpp"
#include "device/cuda/load_kernel.hpp"

namespace ddp::cuda {
namespace {

constexpr int kCandidates = 8;
constexpr int kLaunches = 200;                 // of a trial
constexpr int kLaunchesAWait = 25;             // the candidate waits for as many
constexpr int kTrials = 3;                     // the fastest counts: other work only adds
constexpr std::uint64_t kKernelTime = 4'000;   // ns: longer than the host takes for a launch
constexpr std::uint64_t kHeadStart = 100'000;  // ns, for the host
// Times what a short kernel takes while nothing waits. Trials differ by 1.003, a bad stream makes it 1.2.
constexpr float kQuiet = 1.1F;

__global__ void spin(std::uint64_t nanoseconds) {
  std::uint64_t begin = 0;
  std::uint64_t now = 0;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  } while (now - begin < nanoseconds);
}

__global__ void do_nothing() {}

class Trial {
 public:
  explicit Trial(CudaStream& compute) : compute_(compute) {
    load_kernel(&spin);
    load_kernel(&do_nothing);
    for (cudaEvent_t* const event : {&begin_, &end_}) check(cudaEventCreate(event), "making an event");
    for (cudaEvent_t& event : waits_) {
      check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "making an event");
    }
  }
  ~Trial() {
    for (cudaEvent_t const event : {begin_, end_}) static_cast<void>(cudaEventDestroy(event));
    for (cudaEvent_t const event : waits_) static_cast<void>(cudaEventDestroy(event));
  }
  Trial(Trial const&) = delete;
  Trial& operator=(Trial const&) = delete;

  /// How many µs a short kernel of the computing stream takes while `waiting` waits for it. Null: while none
  /// does.
  [[nodiscard]] float microseconds(CudaStream* waiting) {
    float best = std::numeric_limits<float>::max();
    for (int trial = 0; trial < kTrials; ++trial) best = std::min(best, once(waiting));
    return best * 1000 / kLaunches;
  }

 private:
  float once(CudaStream* waiting) {
    spin<<<1, 32, 0, compute_.handle()>>>(kHeadStart);
    check(cudaEventRecord(begin_, compute_.handle()), "recording an event");
    for (cudaEvent_t const event : waits_) {
      for (int i = 0; i < kLaunchesAWait; ++i) spin<<<1, 32, 0, compute_.handle()>>>(kKernelTime);
      check(cudaEventRecord(event, compute_.handle()), "recording an event");
      if (waiting == nullptr) continue;
      check(cudaStreamWaitEvent(waiting->handle(), event), "waiting for an event");
      do_nothing<<<1, 32, 0, waiting->handle()>>>();
    }
    check(cudaEventRecord(end_, compute_.handle()), "recording an event");
    check(cudaGetLastError(), "trying a stream");
    compute_.synchronize();
    if (waiting != nullptr) waiting->synchronize();
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin_, end_), "timing a stream");
    return milliseconds;
  }

  CudaStream& compute_;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
  std::array<cudaEvent_t, kLaunches / kLaunchesAWait> waits_{};
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
      text("a short kernel on a stream of ", compute.device(), " takes ", undisturbed, " us, and ", least,
           " us while the communication stream waits for it; streams tried: ", tried.size() + 1));
  return best;
}

}  // namespace ddp::cuda
