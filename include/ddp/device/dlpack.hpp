// Tensors from and to DLPack, the form in which libraries hand arrays to each other. It needs DLPack's
// header, so <ddp/ddp.hpp> leaves it out: Debian's libdlpack-dev, or PyTorch's <ATen/dlpack.h>, which is then
// included before this one.
// https://dmlc.github.io/dlpack/latest/c_api.html
#pragma once

#include <memory>
#include <utility>

#include "ddp/core/error.hpp"
#include "ddp/core/export.hpp"
#include "ddp/core/tensor.hpp"
#include "ddp/device/detail/dlpack_parts.hpp"

namespace DDP_EXPORT ddp {

/// `tensor` for another library, which calls the result's deleter once when it needs it no more; until then
/// the memory lives. The device is CUDA's number of the GPU in this process, or the CPU. DLPack knows no
/// streams: a reader on another stream must make that stream wait for the one that wrote.
[[nodiscard]] inline DLManagedTensor* to_dlpack(Tensor const& tensor) {
  return &(new detail::DlpackExport(tensor))->managed;
}

/// What another library has made, without a copy. The result keeps the memory: `managed`'s deleter is called
/// when the last copy of it goes, or before this throws. Pinned memory counts as the CPU's. Throws
/// Error(invalid_argument) for elements that are not row-major and dense, Error(unsupported) for types and
/// devices that a Tensor cannot have. Streams as with to_dlpack().
[[nodiscard]] inline Tensor from_dlpack(DLManagedTensor* managed) {
  require(managed != nullptr, "from_dlpack(): a null pointer");
  auto owner = std::make_shared<detail::DlpackOwner>(managed);
  TensorView const view = detail::view_from(managed->dl_tensor);
  return {view, std::move(owner)};
}

}  // namespace ddp
