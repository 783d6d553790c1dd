// Which calls of NCCL have returned, and whether new ones may begin.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>

#include "comm/nccl/calls/published_calls.hpp"
#include "comm/nccl/watch/gpu_progress.hpp"

namespace ddp {

/// Between the thread that calls NCCL and the thread that frees the communicator. The first publishes its
/// operations, then checks whether the gate is shut; the second shuts the gate, then reads what is published.
/// So at least one of them sees what the other did.
class NcclCallGate {
 public:
  explicit NcclCallGate(std::shared_ptr<PublishedCalls const> calls) : calls_(std::move(calls)) {}

  // For the thread that calls.

  /// Whether the published operations may not be called any more.
  [[nodiscard]] bool is_shut() const noexcept { return shut_.load(std::memory_order_seq_cst); }
  /// The calls of all published operations have returned, or were not made.
  void calls_returned() noexcept {
    collectives_.store(calls_->collectives(), std::memory_order_relaxed);
    operations_.store(calls_->published(), std::memory_order_seq_cst);
  }

  // For any thread.

  /// How many operations have been called, and have returned.
  [[nodiscard]] GpuProgress::Point returned() const noexcept {
    std::uint64_t const operations = operations_.load(std::memory_order_seq_cst);
    return {operations, collectives_.load(std::memory_order_relaxed)};
  }
  [[nodiscard]] std::uint64_t returned_collectives() const noexcept { return collectives_.load(); }
  void shut() noexcept { shut_.store(true, std::memory_order_seq_cst); }
  /// After shut(): returns when no thread is in a call of NCCL any more.
  void wait_for_calls() const {
    while (operations_.load(std::memory_order_seq_cst) != calls_->published()) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }

 private:
  std::shared_ptr<PublishedCalls const> calls_;
  std::atomic<std::uint64_t> operations_{0};
  std::atomic<std::uint64_t> collectives_{0};
  std::atomic<bool> shut_{false};
};

}  // namespace ddp
