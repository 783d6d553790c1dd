// How an NCCL communicator is freed.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "comm/nccl/calls/call_gate.hpp"
#include "comm/nccl/connect.hpp"

namespace ddp {

/// Frees a communicator, in order or by an abort. One thread at a time, except for is_aborted() and
/// is_retired().
class NcclTeardown {
 public:
  /// `group` and `gate` must outlive it.
  NcclTeardown(NcclGroup const& group, std::shared_ptr<NcclHandles> handles, NcclCallGate& gate)
      : group_(group), handles_(std::move(handles)), gate_(gate) {}

  /// Aborts in a thread of its own: kernels of several communicators can wait for each other, so an abort may
  /// have to wait until the other communicators are aborted too.
  void begin_to_abort() noexcept;
  [[nodiscard]] bool has_begun() const noexcept { return begun_; }
  enum class Manner {
    in_order,
    alone,  ///< nothing runs and nothing has failed, but other ranks have not come to the end
    failed
  };
  /// Returns when it is freed: by the abort if one has begun, otherwise as `manner` says.
  void finish(Manner manner) noexcept;

  [[nodiscard]] bool is_aborted() const noexcept { return aborted_.load(std::memory_order_relaxed); }
  /// It was freed, and nothing had failed: failures of other ranks no longer matter here.
  [[nodiscard]] bool is_retired() const noexcept { return retired_.load(std::memory_order_relaxed); }

 private:
  void abort() noexcept;
  void close() noexcept;
  void leave() noexcept;

  NcclGroup const& group_;
  std::shared_ptr<NcclHandles> handles_;
  NcclCallGate& gate_;
  bool begun_ = false;
  std::thread aborting_;
  std::atomic<bool> aborted_{false};
  std::atomic<bool> retired_{false};
};

}  // namespace ddp
