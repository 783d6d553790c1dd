// How an NCCL communicator ends.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "comm/nccl/call_gate.hpp"
#include "comm/nccl/connect.hpp"

namespace ddp {

/// Aborts in the calling thread, whose current device is the group's. If that hangs, the process exits: its
/// GPU could never be used again, and whoever waits for the process would wait for ever.
void abort_within_bound(NcclGroup const& group, std::function<void()> const& abort) noexcept;

/// The end of a communicator, in order or by an abort. One thread at a time, but for is_aborted(),
/// is_retired().
class NcclEnding {
 public:
  /// `group` and `gate` must outlive it.
  NcclEnding(NcclGroup const& group, std::shared_ptr<NcclHandles> handles, NcclCallGate& gate)
      : group_(group), handles_(std::move(handles)), gate_(gate) {}

  /// Aborts in a thread of its own: kernels of several communicators can wait for each other, and the abort
  /// of one for the kernels of all.
  void begin_to_abort() noexcept;
  [[nodiscard]] bool has_begun() const noexcept { return begun_; }
  /// Returns when the communicator is freed: by the abort that has begun; otherwise in order, or by an abort.
  void finish(bool in_order) noexcept;

  [[nodiscard]] bool is_aborted() const noexcept { return aborted_.load(std::memory_order_relaxed); }
  /// It has ended in order: failures of other ranks no longer matter here.
  [[nodiscard]] bool is_retired() const noexcept { return retired_.load(std::memory_order_relaxed); }

 private:
  void abort() noexcept;
  void close() noexcept;

  NcclGroup const& group_;
  std::shared_ptr<NcclHandles> handles_;
  NcclCallGate& gate_;
  bool begun_ = false;
  std::thread aborting_;
  std::atomic<bool> aborted_{false};
  std::atomic<bool> retired_{false};
};

}  // namespace ddp
