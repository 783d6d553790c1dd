// Calls of NCCL that become one launch.
#pragma once

#include <nccl.h>

namespace ddp {

/// Between construction and end(), NCCL collects calls. The group is ended in any case.
class NcclGroupCalls {
 public:
  NcclGroupCalls() : started_(ncclGroupStart()) {}
  ~NcclGroupCalls() {
    if (!ended_) static_cast<void>(ncclGroupEnd());
  }
  NcclGroupCalls(NcclGroupCalls const&) = delete;
  NcclGroupCalls& operator=(NcclGroupCalls const&) = delete;
  /// The first error: of `result`, of a call, or of the group.
  [[nodiscard]] ncclResult_t end(ncclResult_t result) {
    ended_ = true;
    ncclResult_t const end = ncclGroupEnd();
    if (started_ != ncclSuccess) return started_;
    return result != ncclSuccess ? result : end;
  }

 private:
  ncclResult_t started_;
  bool ended_ = false;
};

}  // namespace ddp
