// How far the GPU is with a communicator's operations.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "ddp/device/cuda_stream.hpp"

namespace ddp {

/// Learns it without a cost to each operation: the watchdog records an event behind the operations of the
/// stream at each of its looks, and the caller one in front of its next operation when the watchdog has asked
/// for it. What is captured into a graph counts as done when the capture is over.
class NcclProgress {
 public:
  explicit NcclProgress(Device device);
  ~NcclProgress();
  NcclProgress(NcclProgress const&) = delete;
  NcclProgress& operator=(NcclProgress const&) = delete;

  // For the thread that calls the communicator.

  /// Operations are on `stream` from now on. Returns whether they were on another one before.
  bool follow(CudaStream const& stream);
  /// Right before operation `number` is enqueued on `stream`.
  void before(std::uint64_t number, CudaStream const& stream) {
    if (probe_state_.load(std::memory_order_relaxed) == Probe::wanted) [[unlikely]] {
      probe(number, stream);
    }
  }

  // For the watchdog's thread.

  struct Point {
    std::uint64_t operations = 0;
    std::uint64_t collectives = 0;  ///< among them
  };
  /// Looks what the GPU has done of what is enqueued, up to `issued`. Returns whether that is more than
  /// before. Throws Error(device).
  bool look(Point issued);
  /// Whether operation `number` is known to stand behind other work of its stream, which it does not share
  /// with other ranks.
  [[nodiscard]] bool is_behind_other_work(std::uint64_t number) const noexcept;

  // For any thread.

  [[nodiscard]] std::uint64_t operations_done() const noexcept { return operations_done_.load(); }
  [[nodiscard]] std::uint64_t collectives_done() const noexcept { return collectives_done_.load(); }
  /// Whether the stream has nothing left to do. True if it is gone.
  [[nodiscard]] bool stream_is_idle() const;

 private:
  enum class Probe : std::uint8_t { wanted, recorded, reached };
  struct Mark {
    cudaEvent_t event = nullptr;
    Point through;
  };
  void probe(std::uint64_t number, CudaStream const& stream);
  void look_at_probe();
  [[nodiscard]] bool mark(Point issued);
  bool done_through(Point point) noexcept;

  Device device_;
  mutable std::mutex mutex_;  // of stream_
  std::weak_ptr<CudaStream::State> stream_;
  std::array<Mark, 8> marks_;  // from first_ on, count_ of them have been recorded
  std::size_t first_ = 0;
  std::size_t count_ = 0;
  std::uint64_t marked_ = 0;  // operations before the last mark
  std::atomic<std::uint64_t> operations_done_{0};
  std::atomic<std::uint64_t> collectives_done_{0};
  cudaEvent_t probe_event_ = nullptr;
  std::uint64_t probe_number_ = 0;
  std::atomic<Probe> probe_state_{Probe::wanted};
};

}  // namespace ddp
