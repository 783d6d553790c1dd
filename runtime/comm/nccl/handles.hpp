// The two communicators of NCCL inside each of ours.
#pragma once

#include <nccl.h>

#include <functional>
#include <memory>
#include <vector>

#include "ddp/core/ids.hpp"

namespace ddp {

class RecordedGraph;

/// The two communicators that make one; the only owner of both. One thread at a time.
///
/// The first is made without blocking, so that its construction can be watched and given up. But NCCL starts
/// a thread for each operation of such a communicator and returns before the operation is in the stream: an
/// event recorded behind it orders nothing. So operations run on a second one, split from the first, which
/// blocks. The two share their resources, including the flag that tells kernels and calls to abort: aborting
/// the first ends a call that another thread is in on the second, which can be freed when that thread has
/// left.
class NcclHandles {
 public:
  NcclHandles() = default;
  NcclHandles(NcclHandles const&) = delete;
  NcclHandles& operator=(NcclHandles const&) = delete;
  /// Logs if they are still open: nothing that may hang is done here.
  ~NcclHandles();

  [[nodiscard]] ncclComm_t work() const noexcept { return work_; }

  /// Makes both. All ranks call it at about the same time. `most_ctas`: of an operation; 0: NCCL's choice.
  /// `check`: called all the while, throws to give up; the caller then aborts.
  void open(ncclUniqueId const& id, Rank rank, int size, int most_ctas, std::function<void()> const& check);
  /// What NCCL has found out by itself.
  [[nodiscard]] ncclResult_t asynchronous_error() const;
  /// Ends operations that run. First it tells calls in other threads to end, which needs no call of CUDA.
  /// Then it calls `leave`, which returns when no other thread is in a call of NCCL. May hang.
  void abort(std::function<void()> const& leave) noexcept;
  /// The orderly end, when nothing runs and no rank has failed. May hang.
  void close();
  /// NCCL frees a communicator only when no graph holds its operations: so this one is destroyed before.
  /// Called where `leave` waits for.
  void keep(std::weak_ptr<RecordedGraph> graph);

 private:
  void destroy_graphs() noexcept;

  std::vector<std::weak_ptr<RecordedGraph>> graphs_;
  ncclComm_t first_ = nullptr;
  ncclComm_t work_ = nullptr;
};

}  // namespace ddp
