#include "support/fakes/fake_cuda_events.hpp"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <atomic>
#include <string_view>
#include <thread>

#include "ddp/core/error.hpp"
#include "device/cuda/driver_api.hpp"

namespace {

std::atomic<bool> done{true};
std::atomic<bool> answering{true};
std::atomic<bool> broken{false};
std::atomic<bool> capturing{false};
std::atomic<std::thread::id> last_recorder;

void wait_for_an_answer() { answering.wait(false); }

// Behind what a stream had then.
struct FakeEvent {
  std::atomic<bool> reached_at_once{true};
};
FakeEvent& event_of(cudaEvent_t event) { return *reinterpret_cast<FakeEvent*>(event); }

cudaError_t answer(bool reached) { return reached ? cudaSuccess : cudaErrorNotReady; }

CUresult CUDAAPI write_value(CUstream /*stream*/, CUdeviceptr address, cuuint32_t value,
                             unsigned int /*flags*/) {
  if (broken) return CUDA_ERROR_ILLEGAL_ADDRESS;
  std::atomic_ref(*reinterpret_cast<cuuint32_t*>(address)).store(value);
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int /*flags*/) {
  *event = reinterpret_cast<cudaEvent_t>(new FakeEvent);
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete &event_of(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t /*stream*/) {
  wait_for_an_answer();
  event_of(event).reached_at_once = done.load();
  last_recorder = std::this_thread::get_id();
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  wait_for_an_answer();
  return answer(event_of(event).reached_at_once || done);
}
cudaError_t cudaStreamQuery(cudaStream_t /*stream*/) {
  wait_for_an_answer();
  return broken ? cudaErrorIllegalAddress : answer(done);
}
cudaError_t cudaStreamWaitEvent(cudaStream_t /*stream*/, cudaEvent_t /*event*/, unsigned int /*flags*/) {
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t /*stream*/, cudaStreamCaptureStatus* status) {
  wait_for_an_answer();
  *status = capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* /*mode*/) { return cudaSuccess; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaPeekAtLastError() { return cudaSuccess; }

}  // extern "C"

// Of the driver's functions only the one that enqueues a mark.
void* ddp::cuda::find_driver_function(char const* name, std::string_view /*what*/,
                                      std::string_view /*since*/) {
  if (std::string_view(name) == "cuStreamWriteValue32_v2") return reinterpret_cast<void*>(&write_value);
  throw Error(ErrorCode::unsupported, name);
}

namespace ddp::testing::fake_cuda {

std::thread::id last_recorder() { return ::last_recorder; }
void set_done(bool value) { done = value; }
void set_broken(bool value) { broken = value; }
void set_capturing(bool value) { capturing = value; }
void set_answering(bool value) {
  answering = value;
  answering.notify_all();
}

}  // namespace ddp::testing::fake_cuda
