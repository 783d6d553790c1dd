// How far the GPU is with a communicator's operations.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>

#include "core/service_thread.hpp"
#include "ddp/device/cuda_stream.hpp"

namespace ddp {

/// The caller records an event behind each of its calls, and one before it if a poll has asked for that;
/// polls only ask for events. A poll that recorded them would disturb a program that begins or ends a capture
/// of the stream at the same moment: the event would belong to the capture, and CUDA may even crash.
/// Operations that are captured into a graph count as done when the capture is over.
///
/// Polls run in a thread of their own, one for all communicators of a GPU, because CUDA may block: another
/// thread that launches into a full queue, or frees memory, holds the driver's lock until the GPU moves on,
/// and the GPU may wait for a rank that is gone.
class GpuProgress final : private ServiceThread::Client {
 public:
  explicit GpuProgress(Device device);
  /// Waits for CUDA, as stop().
  ~GpuProgress() override;
  GpuProgress(GpuProgress const&) = delete;
  GpuProgress& operator=(GpuProgress const&) = delete;

  // For the thread that calls the communicator.

  /// Whether `stream` is the one that operations are on.
  [[nodiscard]] bool is_on(CudaStream const& stream) const noexcept;
  /// From now on operations are on `stream`; waits for it ask `watch` for failures.
  void follow(CudaStream const& stream, std::shared_ptr<StreamWatch const> const& watch);
  /// Called right before operation `number` is enqueued on `stream`.
  void before(std::uint64_t number, CudaStream const& stream) {
    if (probe_state_.load(std::memory_order_acquire) == Probe::wanted) [[unlikely]] {
      probe(number, stream);
    }
  }
  struct Point {
    std::uint64_t operations = 0;
    std::uint64_t collectives = 0;  ///< among them
  };
  /// Called when the operations up to `point` have been enqueued on `stream`. The next request_look() throws
  /// what goes wrong.
  void behind(Point point, CudaStream const& stream) noexcept;

  // For the watchdog's thread. None of these calls CUDA.

  /// Asks for a poll: how many operations has the GPU done? Returns whether the previous poll is over: false
  /// while CUDA does not answer. Throws the Error(device) of a poll, or of behind(), that failed.
  bool request_look();
  /// Whether the last poll found operation `number` queued behind other work of this rank on its stream.
  [[nodiscard]] bool is_behind_other_work(std::uint64_t number) const noexcept;
  /// Ends the polls. Waits for one that is running.
  void stop() noexcept;

  // For any thread.

  [[nodiscard]] std::uint64_t operations_done() const noexcept { return operations_done_.load(); }
  [[nodiscard]] std::uint64_t collectives_done() const noexcept { return collectives_done_.load(); }
  /// Whether the stream has nothing left to do. True if it is gone.
  [[nodiscard]] bool stream_is_idle() const;
  /// Whether the stream is captured into a graph.
  [[nodiscard]] bool stream_is_capturing() const;

 private:
  enum class Probe : std::uint8_t { wanted, recorded, reached };
  /// The end of the operations up to a point. Operations of a capture have no event.
  struct Mark {
    cudaEvent_t event = nullptr;
    Point through;
    bool has_event = false;
    bool is_captured = false;
  };
  void probe(std::uint64_t number, CudaStream const& stream);
  [[nodiscard]] std::shared_ptr<CudaStream::State> stream() const;

  // In the thread that polls.
  std::optional<std::chrono::milliseconds> serve() noexcept override;
  void look();
  void look_at_probe();
  [[nodiscard]] bool is_reached(Mark const& mark) const;
  /// The oldest mark that is not known to be reached.
  [[nodiscard]] std::optional<Mark> oldest();
  void drop_oldest();

  Device device_;
  ServiceThread& looks_;
  mutable std::mutex mutex_;  // guards stream_; CUDA is not called under it
  std::weak_ptr<CudaStream::State> stream_;

  // Each poll closes the newest mark. Until then calls move it on, so that 8 suffice: behind what was called
  // between two polls, and the last behind all the rest.
  std::mutex marks_mutex_;  // guards marks_ and the four after it; CUDA may be called under it by the caller
  std::array<Mark, 8> marks_;  // from first_ on, count_ of them are in use
  std::size_t first_ = 0;
  std::size_t count_ = 0;
  bool newest_is_closed_ = true;
  std::exception_ptr mark_failure_;
  std::atomic<std::uint64_t> operations_done_{0};
  std::atomic<std::uint64_t> collectives_done_{0};
  cudaEvent_t probe_event_ = nullptr;
  std::atomic<std::uint64_t> probe_number_{0};
  std::atomic<Probe> probe_state_{Probe::wanted};

  std::mutex look_mutex_;  // guards what follows
  bool wanted_ = false;    // from the request until the poll is over
  std::exception_ptr failure_;
};

}  // namespace ddp
