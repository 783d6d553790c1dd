// Builds without CUDA have no memory of GPUs to copy.
#include "ddp/core/error.hpp"
#include "device/memory/block_copy.hpp"

namespace ddp::cuda {

void copy_block(BlockCopy const& /*copy*/, Stream& /*stream*/) {
  throw Error(ErrorCode::unsupported, "a copy of GPU memory needs CUDA, and this build of ddp has none");
}

}  // namespace ddp::cuda
