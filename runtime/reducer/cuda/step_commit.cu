#include <cuda_runtime.h>

#include "ddp/device/cuda_stream.hpp"
#include "ddp/device/device_guard.hpp"
#include "device/cuda/check.hpp"
#include "device/cuda/load_kernel.hpp"
#include "device/cuda/stream/stream_state.hpp"
#include "reducer/parts/step_commit.hpp"

namespace ddp::cuda {
namespace {

// Behind all collectives of the step: a kernel of one that was ended early has returned after the word was
// set, so it is seen here.
__global__ void commit_kernel(StepCommit::Words const words) {
  bool const broken = *static_cast<std::uint32_t const volatile*>(words.poisoned) != 0;
  if (broken) {
    *words.skip = 1;
  } else {
    ++words.own->committed;
    if (!words.keeps_found) *words.skip = 0;
  }
  auto volatile* const told = words.told;
  told->committed = words.own->committed;
  __threadfence_system();
  told->ended = ++words.own->ended;
}

}  // namespace

void load_commit_kernel(Device device) {
  DeviceGuard const guard(device);
  load_kernel(&commit_kernel);
}

void commit_step(StepCommit::Words const& words, Stream& stream) {
  DeviceGuard const guard(stream.device());
  commit_kernel<<<1, 1, 0, cuda_stream(stream).handle()>>>(words);
  check(cudaPeekAtLastError(), "committing a step");
}

void require_no_failure(Stream& stream) {
  static_cast<void>(cuda_stream(stream).state()->is_idle("work on a GPU failed"));
}

}  // namespace ddp::cuda
