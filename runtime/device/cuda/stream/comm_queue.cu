// Which hardware queue a communication stream has.
//
// A GPU takes work from a few hardware queues, over which CUDA spreads streams. While a kernel in one queue
// waits for an event, each launch from some of the others takes longer: 1.1 to 1.6 µs on an H100
// (docs/measurements.md). Which queues disturb each other CUDA does not tell, and it changes with the streams
// that a process has made. So streams are tried, as a training step uses them: the host runs ahead of short
// kernels. Launches that were all enqueued before the first of them began, and kernels shorter than a launch,
// do not show the difference.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <limits>
#include <vector>

#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"
#include "ddp/device/cuda_stream.hpp"
#include "ddp/device/device_guard.hpp"
#include "ddp/device/event.hpp"
#include "device/cuda/backend.hpp"
#include "device/cuda/check.hpp"
#include "device/cuda/load_kernel.hpp"
#include "device/cuda/stream/stream_state.hpp"
#include "device/stream/first_quiet.hpp"

namespace ddp::cuda {
namespace {

constexpr std::size_t kMostTried = 8;
constexpr int kWaits = 8;  // of a trial
constexpr int kLaunchesAWait = 25;
constexpr int kTrials = 3;                     // the fastest counts: other work only adds
constexpr std::uint64_t kKernelTime = 4'000;   // ns: longer than the host takes for a launch
constexpr std::uint64_t kHeadStart = 100'000;  // ns, for the host
// Times what a short kernel takes while nothing waits. Trials differ by 1.003, a bad stream makes it 1.2.
constexpr double kQuiet = 1.1;

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
  explicit Trial(CudaStream& compute) : compute_(compute), begin_(compute.device()), end_(compute.device()) {
    load_kernel(&spin);
    load_kernel(&do_nothing);
    for (int i = 0; i < kWaits; ++i) waits_.emplace_back(compute.device());
  }

  /// How many µs a short kernel of the computing stream takes while `waiting` waits for it. Null: while none
  /// does.
  [[nodiscard]] double microseconds(CudaStream* waiting) {
    double best = std::numeric_limits<double>::max();
    for (int trial = 0; trial < kTrials; ++trial) best = std::min(best, once(waiting));
    return best * 1000 / (kWaits * kLaunchesAWait);
  }

 private:
  double once(CudaStream* waiting) {
    spin<<<1, 32, 0, compute_.handle()>>>(kHeadStart);
    begin_.record(compute_);
    for (Event& event : waits_) {
      for (int i = 0; i < kLaunchesAWait; ++i) spin<<<1, 32, 0, compute_.handle()>>>(kKernelTime);
      event.record(compute_);
      if (waiting == nullptr) continue;
      event.block(*waiting);
      do_nothing<<<1, 32, 0, waiting->handle()>>>();
    }
    end_.record(compute_);
    check(cudaGetLastError(), "trying a stream");
    compute_.synchronize();
    if (waiting != nullptr) waiting->synchronize();
    return Event::milliseconds(begin_, end_);
  }

  CudaStream& compute_;
  Event begin_;
  Event end_;
  std::vector<Event> waits_;
};

}  // namespace

void choose_queue(Stream& comm, Stream& compute) {
  CudaStream& stream = cuda_stream(comm);
  CudaStream& beside = cuda_stream(compute);
  if (beside.is_capturing() || !stream.state()->queue()->may_change()) return;
  DeviceGuard const guard(stream.device());
  stream.synchronize();
  beside.synchronize();
  Trial trial(beside);
  double const undisturbed = trial.microseconds(nullptr);
  std::deque<CudaStream> others;  // kept until one is chosen, so that CUDA gives the next another queue
  auto const found = first_quiet(kMostTried, kQuiet * undisturbed, [&](std::size_t i) {
    return trial.microseconds(
        i == 0 ? &stream : &others.emplace_back(stream.device(), CudaStream::Kind::communication));
  });
  if (found.index != 0) stream.state()->queue()->take(others[found.index - 1].state()->queue());
  log(LogLevel::debug, text("a short kernel on ", stream.device(), " takes ", undisturbed, " us, and ",
                            found.first, " us while the communication stream waits for it; with stream ",
                            found.index, " of those tried ", found.time, " us"));
}

}  // namespace ddp::cuda
