#include <cuda_runtime_api.h>

#include "ddp/core/text.hpp"
#include "ddp/device/cuda_stream.hpp"
#include "ddp/device/device_guard.hpp"
#include "device/cuda/backend.hpp"
#include "device/cuda/check.hpp"
#include "device/cuda/stream/stream_state.hpp"

namespace ddp::cuda {
namespace {

class CudaMark final : public Event::Mark {
 public:
  explicit CudaMark(Device device) : device_(device) {
    DeviceGuard const guard(device);
    check(cudaEventCreate(&event_), text("making an event of ", device));
  }
  ~CudaMark() override {
    end_on(device_, [this] { static_cast<void>(cudaEventDestroy(event_)); });
  }
  CudaMark(CudaMark const&) = delete;
  CudaMark& operator=(CudaMark const&) = delete;

  void record(Stream& stream) override {
    OnItsDevice const on(cuda_stream(stream));
    check(cudaEventRecord(event_, cuda_stream(stream).handle()), "recording an event");
    recorded_ = true;
  }
  void record_in_replays(Stream& stream) override {
    OnItsDevice const on(cuda_stream(stream));
    check(cudaEventRecordWithFlags(event_, cuda_stream(stream).handle(), cudaEventRecordExternal),
          "recording an event into a CUDA graph");
  }
  [[nodiscard]] CUevent_st* handle() const noexcept override { return event_; }
  [[nodiscard]] bool reached() const override {
    return recorded_ && is_done(cudaEventQuery(event_), "asking for an event");
  }
  // For CUDA, an event that was never recorded is reached.
  void block(Stream& stream) override {
    OnItsDevice const on(cuda_stream(stream));
    check(cudaStreamWaitEvent(cuda_stream(stream).handle(), event_, 0), "making a stream wait for an event");
  }
  [[nodiscard]] double milliseconds_since(Mark const& earlier) const override {
    float milliseconds = 0;
    DeviceGuard const guard(device_);
    check(cudaEventElapsedTime(&milliseconds, dynamic_cast<CudaMark const&>(earlier).event_, event_),
          "asking for the time between two events");
    return static_cast<double>(milliseconds);
  }

 private:
  Device device_;
  cudaEvent_t event_ = nullptr;
  bool recorded_ = false;
};

}  // namespace

std::unique_ptr<Event::Mark> make_mark(Device device) { return std::make_unique<CudaMark>(device); }

}  // namespace ddp::cuda
