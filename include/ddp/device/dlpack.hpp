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
#include "ddp/core/text.hpp"
#include "ddp/device/detail/dlpack_parts.hpp"

namespace DDP_EXPORT ddp {

/// `tensor` for another library, which calls the result's deleter once when it needs it no more; until then
/// the memory lives. The device is CUDA's number of the GPU in this process, or the CPU. DLPack knows no
/// streams: a reader on another stream must make that stream wait for the one that wrote.
[[nodiscard]] inline DLManagedTensor* to_dlpack(Tensor const& tensor) {
  return &(new detail::DlpackExport<DLManagedTensor>(tensor))->managed;
}

/// What another library has made, without a copy. The result keeps the memory: `managed`'s deleter is called
/// when the last copy of it goes, or before this throws. Pinned memory counts as the CPU's. Throws
/// Error(invalid_argument) for elements that are not row-major and dense, Error(unsupported) for types and
/// devices that a Tensor cannot have. Streams as with to_dlpack().
[[nodiscard]] inline Tensor from_dlpack(DLManagedTensor* managed) {
  require(managed != nullptr, "from_dlpack(): a null pointer");
  auto owner = std::make_shared<detail::DlpackOwner<DLManagedTensor>>(managed);
  TensorView const view = detail::view_from(managed->dl_tensor);
  return {view, std::move(owner)};
}

#if defined(DLPACK_MAJOR_VERSION) && DLPACK_MAJOR_VERSION >= 1
/// As to_dlpack(), in the form of DLPack 1.
[[nodiscard]] inline DLManagedTensorVersioned* to_dlpack_versioned(Tensor const& tensor) {
  auto* const made = new detail::DlpackExport<DLManagedTensorVersioned>(tensor);
  made->managed.version = {DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION};
  return &made->managed;
}

/// As from_dlpack(), from the form of DLPack 1. Throws Error(unsupported) also for another major version, and
/// for memory that must not be written, since a Tensor may be written by every owner.
[[nodiscard]] inline Tensor from_dlpack(DLManagedTensorVersioned* managed) {
  require(managed != nullptr, "from_dlpack(): a null pointer");
  auto owner = std::make_shared<detail::DlpackOwner<DLManagedTensorVersioned>>(managed);
  if (managed->version.major != DLPACK_MAJOR_VERSION) {
    throw Error(ErrorCode::unsupported,
                text("from_dlpack(): expected version ", DLPACK_MAJOR_VERSION, " of DLPack, found ",
                     managed->version.major, "; build both libraries with headers of one version"));
  }
  if ((managed->flags & DLPACK_FLAG_BITMASK_READ_ONLY) != 0) {
    throw Error(
        ErrorCode::unsupported,
        "from_dlpack(): expected memory that may be written, found an array that is read-only; copy it "
        "first");
  }
  TensorView const view = detail::view_from(managed->dl_tensor);
  return {view, std::move(owner)};
}
#endif

}  // namespace ddp
