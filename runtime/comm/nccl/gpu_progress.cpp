#include "comm/nccl/gpu_progress.hpp"

#include <algorithm>
#include <chrono>
#include <map>
#include <utility>

#include "ddp/core/text.hpp"
#include "ddp/device/device_guard.hpp"
#include "device/cuda/backend.hpp"
#include "device/cuda/check.hpp"
#include "device/cuda/stream/stream_state.hpp"

namespace ddp {
namespace {

cudaEvent_t make_event(Device device) {
  cudaEvent_t event = nullptr;
  cuda::check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), text("making an event of ", device));
  return event;
}

// The thread of all communicators of one GPU: CUDA may block for one GPU and answer for another. Never
// destroyed, since a communicator may live until the process ends.
ServiceThread& looks_of(Device device) {
  static std::mutex mutex;
  static auto* const threads = new std::map<int, ServiceThread>;
  std::lock_guard const lock(mutex);
  return (*threads)[device.index.value()];
}

enum class Reached : std::uint8_t { yes, no, never };

// An event of a capture is never reached. CUDA says cudaErrorInvalidValue when the capture has ended.
Reached query(cudaEvent_t event) {
  cudaError_t const result = cudaEventQuery(event);
  if (result == cudaErrorCapturedEvent || result == cudaErrorInvalidValue) {
    static_cast<void>(cudaGetLastError());
    return Reached::never;
  }
  return cuda::is_done(result, "work on a communicator's stream failed") ? Reached::yes : Reached::no;
}

}  // namespace

GpuProgress::GpuProgress(Device device) : device_(device), looks_(looks_of(device)) {
  DeviceGuard const guard(device_);
  for (Mark& mark : marks_) mark.event = make_event(device_);
  probe_event_ = make_event(device_);
  looks_.add(*this);
}

GpuProgress::~GpuProgress() {
  stop();
  cuda::end_on(device_, [this] {
    for (Mark& mark : marks_) static_cast<void>(cudaEventDestroy(mark.event));
    static_cast<void>(cudaEventDestroy(probe_event_));
  });
}

// Only this thread writes stream_, so it may read stream_ without the lock. While a weak pointer lives, no
// new object gets the address that it holds.
bool GpuProgress::is_on(CudaStream const& stream) const noexcept {
  auto const& state = stream.state();
  return !stream_.owner_before(state) && !state.owner_before(stream_);
}

void GpuProgress::follow(CudaStream const& stream, std::shared_ptr<StreamWatch const> const& watch) {
  // Two objects can stand for one stream of CUDA's.
  if (auto const last = stream_.lock(); last && last->handle() != stream.handle()) {
    last->watches().leave(*watch);
  }
  stream.state()->watches().add(watch);
  std::lock_guard const lock(mutex_);
  stream_ = stream.state();
}

std::shared_ptr<CudaStream::State> GpuProgress::stream() const {
  std::lock_guard const lock(mutex_);
  return stream_.lock();
}

void GpuProgress::probe(std::uint64_t number, CudaStream const& stream) {
  if (stream.is_capturing()) return;
  cuda::check(cudaEventRecord(probe_event_, stream.handle()), "recording an event");
  probe_number_.store(number, std::memory_order_relaxed);
  probe_state_.store(Probe::recorded, std::memory_order_release);
}

void GpuProgress::look_at_probe() {
  if (probe_state_.load(std::memory_order_acquire) == Probe::wanted) return;
  bool const passed = operations_done_.load() >= probe_number_.load(std::memory_order_relaxed);
  if (passed || query(probe_event_) != Reached::no) {
    probe_state_.store(passed ? Probe::wanted : Probe::reached, std::memory_order_release);
  }
}

bool GpuProgress::is_behind_other_work(std::uint64_t number) const noexcept {
  return probe_state_.load(std::memory_order_acquire) == Probe::recorded &&
         probe_number_.load(std::memory_order_relaxed) == number;
}

void GpuProgress::done_through(Point point) noexcept {
  if (point.operations <= operations_done_.load()) return;
  collectives_done_.store(point.collectives);
  operations_done_.store(point.operations);
}

void GpuProgress::mark(Point issued) {
  auto const stream = this->stream();
  if (!stream) {  // nobody can wait for a stream that is gone: all counts as done
    done_through(issued);
    return;
  }
  if (stream->is_capturing()) return;
  Mark& next = marks_[(first_ + count_) % marks_.size()];
  cuda::check(cudaEventRecord(next.event, stream->handle()), "recording an event");
  // The program may have begun a capture meanwhile. Asking for an event of a capture would end that capture.
  if (stream->is_capturing()) return;
  next.through = issued;
  ++count_;
  marked_ = issued.operations;
}

void GpuProgress::look(Point issued) {
  while (count_ != 0) {
    Mark const& oldest = marks_[first_];
    Reached const reached = query(oldest.event);
    if (reached == Reached::no) break;
    if (reached == Reached::yes) done_through(oldest.through);
    first_ = (first_ + 1) % marks_.size();
    --count_;
    if (reached == Reached::never) marked_ = operations_done_.load();
  }
  if (issued.operations > marked_ && count_ < marks_.size()) mark(issued);
  look_at_probe();
}

bool GpuProgress::request_look(Point issued) {
  {
    std::lock_guard const lock(look_mutex_);
    if (failure_) std::rethrow_exception(failure_);
    if (wanted_) return false;
    wanted_ = issued;
  }
  looks_.wake(*this);
  return true;
}

std::optional<std::chrono::milliseconds> GpuProgress::serve() noexcept {
  std::unique_lock lock(look_mutex_);
  if (!wanted_) return std::nullopt;
  Point const issued = *wanted_;
  lock.unlock();
  std::exception_ptr failure;
  try {
    set_device(device_);
    static thread_local bool prepared = false;
    if (!prepared) {
      // Queries of this thread must not break another thread's capture.
      cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
      cuda::check(cudaThreadExchangeStreamCaptureMode(&mode), "setting up a watchdog");
      prepared = true;
    }
    look(issued);
  } catch (...) {
    failure = std::current_exception();
  }
  lock.lock();
  if (failure) failure_ = failure;
  wanted_.reset();
  return std::nullopt;
}

void GpuProgress::stop() noexcept { looks_.remove(*this); }

bool GpuProgress::stream_is_capturing() const {
  auto const stream = this->stream();
  return stream && stream->is_capturing();
}

// A stream's last writes can be seen a few microseconds before the stream counts as idle.
bool GpuProgress::stream_is_idle() const {
  constexpr auto kEnding = std::chrono::microseconds(200);
  auto const stream = this->stream();
  if (!stream) return true;
  if (stream->is_capturing()) return false;
  auto const begin = std::chrono::steady_clock::now();
  do {
    if (stream->is_idle("work on a communicator's stream failed")) return true;
  } while (std::chrono::steady_clock::now() - begin < kEnding);
  return false;
}

}  // namespace ddp
