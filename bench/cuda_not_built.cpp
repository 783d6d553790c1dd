// A build without CUDA.
#include "ddp/core/error.hpp"
#include "gpu.hpp"

namespace ddp::bench {

std::unique_ptr<PlainAllReduce> make_plain_all_reduce(World const& /*world*/) { return nullptr; }

std::unique_ptr<Gemm> make_gpu_gemm(Device /*device*/) {
  throw Error(ErrorCode::unsupported, "this ddp-bench was built without CUDA");
}

std::string gpu_library_versions() { return ""; }

}  // namespace ddp::bench
