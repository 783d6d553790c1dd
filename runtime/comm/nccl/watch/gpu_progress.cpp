#include "comm/nccl/watch/gpu_progress.hpp"

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

bool is_done(cudaEvent_t event) {
  return cuda::is_done(cudaEventQuery(event), "work on a communicator's stream failed");
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
  if (passed || is_done(probe_event_)) {
    probe_state_.store(passed ? Probe::wanted : Probe::reached, std::memory_order_release);
  }
}

bool GpuProgress::is_behind_other_work(std::uint64_t number) const noexcept {
  return probe_state_.load(std::memory_order_acquire) == Probe::recorded &&
         probe_number_.load(std::memory_order_relaxed) == number;
}

void GpuProgress::behind(Point point, CudaStream const& stream) noexcept {
  std::lock_guard const lock(marks_mutex_);
  try {
    bool const is_captured = stream.is_capturing();
    if (newest_is_closed_ && count_ < marks_.size()) {
      Mark& next = marks_[(first_ + count_) % marks_.size()];
      next.has_event = next.is_captured = false;
      ++count_;
      newest_is_closed_ = false;
    }
    Mark& newest = marks_[(first_ + count_ - 1) % marks_.size()];
    newest.is_captured = is_captured;
    if (!is_captured) {
      cuda::check(cudaEventRecord(newest.event, stream.handle()), "recording an event");
      newest.has_event = true;
    }
    newest.through = point;
  } catch (...) {
    mark_failure_ = std::current_exception();
  }
}

// Closed, so that no call moves the mark that a poll asks for.
std::optional<GpuProgress::Mark> GpuProgress::oldest() {
  std::lock_guard const lock(marks_mutex_);
  if (auto const failure = std::exchange(mark_failure_, nullptr)) std::rethrow_exception(failure);
  newest_is_closed_ = true;
  return count_ == 0 ? std::nullopt : std::optional(marks_[first_]);
}

void GpuProgress::drop_oldest() {
  std::lock_guard const lock(marks_mutex_);
  first_ = (first_ + 1) % marks_.size();
  --count_;
}

bool GpuProgress::is_reached(Mark const& mark) const {
  return (!mark.has_event || is_done(mark.event)) && !(mark.is_captured && stream_is_capturing());
}

void GpuProgress::look() {
  for (auto mark = oldest(); mark && is_reached(*mark); mark = oldest()) {
    collectives_done_.store(mark->through.collectives);
    operations_done_.store(mark->through.operations);
    drop_oldest();
  }
  look_at_probe();
}

bool GpuProgress::request_look() {
  {
    std::lock_guard const lock(look_mutex_);
    if (failure_) std::rethrow_exception(failure_);
    if (wanted_) return false;
    wanted_ = true;
  }
  looks_.wake(*this);
  return true;
}

std::optional<std::chrono::milliseconds> GpuProgress::serve() noexcept {
  std::unique_lock lock(look_mutex_);
  if (!wanted_) return std::nullopt;
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
    look();
  } catch (...) {
    failure = std::current_exception();
  }
  lock.lock();
  if (failure) failure_ = failure;
  wanted_ = false;
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
