// What ddp-bench has of NVIDIA's libraries: the all-reduce that it compares with, and the work that it
// overlaps.
#pragma once

#include <memory>
#include <string>

#include "ddp/parallel/world.hpp"
#include "gemm.hpp"

namespace ddp::bench {

/// The library that the runtime carries messages with, called as its own manual says.
class PlainAllReduce {
 public:
  virtual ~PlainAllReduce() = default;
  /// The sum over ranks of f32, in place.
  virtual void sum(TensorView const& in_out, Stream& stream) = 0;
};

/// NCCL, with a communicator of its own, where the ranks of `world` use NCCL; null where they do not.
/// Collective.
[[nodiscard]] std::unique_ptr<PlainAllReduce> make_plain_all_reduce(World const& world);

/// cuBLAS: f32 by TF32 tensor cores, or bf16, both accumulated in f32. Throws Error(unsupported) in a build
/// without CUDA.
[[nodiscard]] std::unique_ptr<Gemm> make_gpu_gemm(Device device);

/// "CUDA 13.0, NCCL 2.28.9"; "" in a build without CUDA.
[[nodiscard]] std::string gpu_library_versions();

}  // namespace ddp::bench
