// What communicators do to elements on a GPU. A build without CUDA has only scale_elements() and
// add_elements(), which throw Error(unsupported) (nccl/not_built.cpp).
#pragma once

#include <cstddef>

#include "comm/kernels/add_elements.hpp"
#include "ddp/comm/reduce_op.hpp"
#include "ddp/core/dtype.hpp"
#include "ddp/device/stream.hpp"

namespace ddp::cuda {

/// out[count] = in[count] × *factor, on `stream`, a stream of the GPU whose memory they are: what
/// reduce_elements() does with one source and a factor, bit for bit. With factor 0 the result is 0 and `in`
/// is not read. 16-bit floats are multiplied in float and rounded once. `dtype` is a floating point type;
/// `factor` is read by the GPU when it gets there; `out` may be `in`, otherwise they must not overlap.
void scale_elements(void* out, void const* in, std::size_t count, DType dtype, double const* factor,
                    Stream& stream);

/// data[count] × `by`, not 0, in place, and otherwise as scale_elements().
void multiply_elements(void* data, std::size_t count, DType dtype, double by, Stream& stream);
/// Loads the kernels for multiply_elements(). Otherwise CUDA would load them at their first launch, and wait
/// until the current GPU is idle; but the GPU may be waiting for another rank.
void load_multiply_elements(DType dtype);

/// *scalar, a `dtype` (f32 or f64) on the GPU, = *factor. If that is 0, data[count] = 0 too, so that their
/// product is 0 even where `data` held NaN. On `stream`, as above.
void set_factor(void* scalar, void* data, std::size_t count, DType dtype, double const* factor,
                Stream& stream);

/// The elements of all ranks of a group on one rank's GPU.
struct RankElements {
  void const* own = nullptr;     ///< of rank `rank`
  void const* others = nullptr;  ///< of the other ranks, in rank order, `pitch` bytes from one to the next
  std::size_t pitch = 0;
  std::size_t rank = 0;
  std::size_t ranks = 1;
  double const* factors = nullptr;  ///< on the GPU, one for each rank; null: elements are not multiplied
};

/// out[count] = what reduce_elements() makes of the ranks' elements, bit for bit: a sum, product or average
/// of a floating point type. `out` may be `from.own`. On `stream`, as above.
void reduce_in_rank_order(void* out, RankElements const& from, std::size_t count, DType dtype,
                          ReduceOp::Kind kind, Stream& stream);
/// Loads its kernels for `dtype`, as load_multiply_elements() does.
void load_reduce_in_rank_order(DType dtype);

/// As ddp::add_elements().
void add_elements(void* to, Addends const& from, std::size_t count, DType dtype, Stream& stream);

}  // namespace ddp::cuda
