// What DataParallel says of a CUDA graph. It has no .cpp, since ddp::libtorch includes it too.
#pragma once

#include "ddp/core/error.hpp"

namespace ddp {

/// Called before anything is allocated or enqueued: that would break the capture, or fail less clearly.
inline void refuse_capture(bool is_capturing) {
  if (!is_capturing) return;
  throw Error(ErrorCode::invalid_state,
              "DataParallel cannot be captured into a CUDA graph: several GPUs in one process would wait for "
              "each other; with DistributedDataParallel, one process a GPU, StepGraph records whole steps");
}

}  // namespace ddp
