// Products of matrices: the work of a backward pass.
#pragma once

#include <memory>

#include "ddp/core/tensor.hpp"
#include "ddp/device/stream.hpp"

namespace ddp::bench {

/// Dense, row-major matrices of one device and one dtype.
class Gemm {
 public:
  enum class Transposed { none, first, second };

  virtual ~Gemm() = default;
  /// out[m,n] = a·b, with `a` stored [m,k] and `b` stored [k,n], or the one that is `transposed` the other
  /// way round.
  virtual void multiply(Transposed transposed, TensorView const& a, TensorView const& b,
                        TensorView const& out, Stream& stream) = 0;
  /// How many of a GPU's multiprocessors the streams of later products have: World::compute_sms(); 0: all.
  /// Nothing on a CPU.
  virtual void plan_for(int multiprocessors) = 0;
};

/// For memory of `device`. On a CPU plain loops of one thread, f32 only: to try things out.
[[nodiscard]] std::unique_ptr<Gemm> make_gemm(Device device, DType dtype);

}  // namespace ddp::bench
