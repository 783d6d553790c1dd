// Tensors of PyTorch as the runtime sees them, and memory of the runtime as PyTorch sees it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "ddp/core/tensor.hpp"

namespace ddp::libtorch {

/// A tensor's memory with its form; complex elements are pairs of real ones, along a last axis.
struct StridedView {
  TensorView value;
  std::vector<std::size_t> strides;  ///< empty: row-major
};

/// `tensor` as the runtime sees it on a rank of device `own`. Throws Error(unsupported), with `what` has it,
/// for layouts other than strided and for types that ranks cannot send, Error(invalid_argument) for a device
/// that is not this rank's.
[[nodiscard]] StridedView view_of(at::Tensor const& tensor, Device own, std::string const& what);

/// The same memory outside of autograd; complex elements are pairs of real ones, along a last axis.
[[nodiscard]] at::Tensor as_real(at::Tensor const& tensor);

/// A tensor of the form of `like` (shape, strides, dtype, device) in `memory`, which it keeps.
[[nodiscard]] at::Tensor tensor_in(Tensor const& memory, at::Tensor const& like);

/// `memory`, one-dimensional, on PyTorch's `device`; keeps nothing alive.
[[nodiscard]] at::Tensor tensor_of(TensorView const& memory, c10::Device device);

/// How often PyTorch's operations have written `tensor`; 0 for a tensor of inference mode, which has no
/// count.
[[nodiscard]] std::int64_t version_of(at::Tensor const& tensor);

/// PyTorch's name of `device`.
[[nodiscard]] c10::Device place_of(Device device);

/// CUDA's number of the GPU behind `device` in this process: what PyTorch calls it.
[[nodiscard]] c10::DeviceIndex cuda_index(Device device);

}  // namespace ddp::libtorch
