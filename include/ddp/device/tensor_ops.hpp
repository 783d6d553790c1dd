// The few operations on elements that the runtime itself needs, ordered on a stream.
#pragma once

#include <span>

#include "ddp/core/export.hpp"
#include "ddp/core/tensor.hpp"
#include "ddp/device/stream.hpp"

namespace DDP_EXPORT ddp {

/// All bytes of `tensor`, on the stream's device, = 0.
void zero_fill(TensorView const& tensor, Stream& stream);

/// to = from: same count and dtype; they must not overlap unless they are the same. Each lies on the stream's
/// device or in host memory. Host memory may be changed or freed only after waiting for the stream; copies
/// from and to host memory that is not pinned make the host wait.
void copy_elements(TensorView const& to, TensorView const& from, Stream& stream);

/// One of many copies.
struct Copy {
  TensorView to;    ///< where elements are written
  TensorView from;  ///< where they are read
};

/// All of `copies`, each as copy_elements() does it; those within a GPU's memory are done by few kernels. No
/// target may overlap what another copy reads or writes. If one of them is refused, none is done.
void copy_elements(std::span<Copy const> copies, Stream& stream);

/// All of `copies`, each to = from with the same count and another dtype: floating point types, every copy
/// from the same one to the same other one. Values are rounded to the nearest, ties to even; what is too
/// large becomes infinite, and NaN stays NaN. f64 becomes a 16-bit type through f32. Both sides lie on the
/// stream's device, and no target overlaps what a copy reads or writes. If one of them is refused, none is
/// done.
void convert_elements(std::span<Copy const> copies, Stream& stream);

}  // namespace ddp
