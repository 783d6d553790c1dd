// The two NCCL communicators of an NcclCommunicator.
#pragma once

#include <nccl.h>

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "ddp/core/ids.hpp"

namespace ddp {

class RecordedGraph;

/// The two communicators that make one; the only owner of both. One thread at a time. Until they are opened,
/// by the first operation, they take neither time nor memory of the GPU.
///
/// NCCL's construction can be watched and given up only for a communicator that does not block. But NCCL
/// starts a thread for each operation of such a communicator and returns before the operation is in the
/// stream: an event recorded behind it orders nothing. So operations run on one that blocks, split from the
/// first. The two share their resources, including the flag that tells kernels and calls to abort. The first
/// is not kept, since its tables take 132 MiB of the GPU: another one split from it, of one channel, guards
/// the flag. Aborting that one ends a call that another thread is in on the communicator of operations, which
/// can be freed when that thread has left.
class NcclHandles {
 public:
  /// Of ranks that have agreed on `id`. `most_ctas`: of an operation; 0: NCCL chooses.
  NcclHandles(ncclUniqueId const& id, Rank rank, int size, int most_ctas) noexcept
      : id_(id), rank_(rank), size_(size), most_ctas_(most_ctas) {}
  NcclHandles(NcclHandles const&) = delete;
  NcclHandles& operator=(NcclHandles const&) = delete;
  /// Logs if they are still open: nothing that may hang is done here.
  ~NcclHandles();

  [[nodiscard]] ncclComm_t work() const noexcept { return work_; }

  /// Whether both are made. Any thread.
  [[nodiscard]] bool is_open() const noexcept { return is_open_; }
  /// Makes both. All ranks call it at about the same time. `check` is called again and again, and throws to
  /// abandon the construction; the caller then aborts.
  void open(std::function<void()> const& check);
  /// The error that NCCL has found by itself, if any. Any thread.
  [[nodiscard]] ncclResult_t asynchronous_error() const;
  /// Ends operations that run. First it tells calls in other threads to end, which needs no call of CUDA.
  /// Then it calls `leave`, which returns when no other thread is in a call of NCCL. May hang.
  void abort(std::function<void()> const& leave) noexcept;
  /// The orderly end, when nothing runs and no rank has failed. May hang.
  void close();
  /// NCCL frees a communicator only when no graph holds its operations, so `graph` is destroyed before. Call
  /// it only where abort()'s `leave` waits for the caller.
  void keep(std::weak_ptr<RecordedGraph> graph);

 private:
  void split(ncclComm_t& into, ncclConfig_t& config, std::function<void()> const& check);
  static void end(ncclComm_t& communicator, std::function<void()> const& check);
  void destroy_graphs() noexcept;

  ncclUniqueId id_;
  Rank rank_;
  int size_;
  int most_ctas_;
  std::atomic<bool> is_open_{false};
  std::vector<std::weak_ptr<RecordedGraph>> graphs_;
  ncclComm_t first_ = nullptr;  // only in open()
  ncclComm_t guard_ = nullptr;
  ncclComm_t work_ = nullptr;
};

}  // namespace ddp
