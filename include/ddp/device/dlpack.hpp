// Tensors from and to DLPack, the form in which libraries hand arrays to each other. It needs DLPack's
// header, so <ddp/ddp.hpp> leaves it out: Debian's libdlpack-dev, or PyTorch's <ATen/dlpack.h>, which is then
// included before this one.
// https://dmlc.github.io/dlpack/latest/c_api.html
#pragma once

#ifndef DLPACK_DLPACK_H_  // of any copy of DLPack's header that was included before
#include <dlpack/dlpack.h>
#endif

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "ddp/core/error.hpp"
#include "ddp/core/export.hpp"
#include "ddp/core/tensor.hpp"
#include "ddp/core/text.hpp"
#include "ddp/device/logical_device.hpp"

namespace DDP_EXPORT ddp {
namespace detail {

inline constexpr std::uint8_t kDlpackBool = 6;  // kDLBool, which DLPack has from 0.8 on

inline DLDataType dlpack_type(DType dtype) noexcept {
  auto const bits = static_cast<std::uint8_t>(8 * size_of(dtype));
  switch (dtype) {
    case DType::f64:
    case DType::f32:
    case DType::f16:
      return {kDLFloat, bits, 1};
    case DType::bf16:
      return {kDLBfloat, bits, 1};
    case DType::i64:
    case DType::i32:
    case DType::i16:
    case DType::i8:
      return {kDLInt, bits, 1};
    case DType::u8:
      return {kDLUInt, bits, 1};
    case DType::boolean:
      break;
  }
  return {kDlpackBool, bits, 1};
}

inline DType dtype_from(DLDataType type) {
  for (std::size_t i = 0; i < kDTypeCount; ++i) {
    auto const dtype = static_cast<DType>(i);
    DLDataType const known = dlpack_type(dtype);
    if (known.code == type.code && known.bits == type.bits && type.lanes == 1) return dtype;
  }
  throw Error(ErrorCode::unsupported,
              text("from_dlpack(): expected elements of f64, f32, f16, bf16, i64, i32, i16, i8, u8 or bool, "
                   "found DLPack's type code ",
                   int{type.code}, " of ", int{type.bits}, " bits and ", type.lanes,
                   " lanes; convert the array first"));
}

inline Device device_from(DLDevice device) {
  if (device.device_type == kDLCPU || device.device_type == kDLCUDAHost) return {};
  if (device.device_type == kDLCUDA) {
    for (LogicalDevice const& known : logical_devices()) {
      if (known.visible == device.device_id) return known.device;
    }
  }
  throw Error(
      ErrorCode::unsupported,
      text("from_dlpack(): expected memory of a CPU or of a GPU of CUDA that this process sees, found "
           "DLPack's device type ",
           static_cast<int>(device.device_type), " number ", device.device_id,
           "; copy the array to one of them first"));
}

inline TensorView view_from(DLTensor const& from) {
  require(from.ndim >= 0 && static_cast<std::size_t>(from.ndim) <= Shape::kMaxDimensions, [&] {
    return text("from_dlpack(): expected at most ", Shape::kMaxDimensions, " dimensions, found ", from.ndim,
                "; reshape the array first");
  });
  auto const dimensions = static_cast<std::size_t>(from.ndim);
  std::array<std::size_t, Shape::kMaxDimensions> extents{};
  for (std::size_t axis = 0; axis < dimensions; ++axis) {
    require(from.shape[axis] >= 0,
            [&] { return text("from_dlpack(): axis ", axis, " has the extent ", from.shape[axis]); });
    extents[axis] = static_cast<std::size_t>(from.shape[axis]);
  }
  TensorView view;
  view.shape = Shape(std::span<std::size_t const>(extents.data(), dimensions));
  view.dtype = dtype_from(from.dtype);
  view.device = device_from(from.device);
  std::int64_t dense = 1;
  for (std::size_t axis = dimensions; from.strides != nullptr && view.count() != 0 && axis-- > 0;) {
    require(from.shape[axis] == 1 || from.strides[axis] == dense, [&] {
      return text("from_dlpack(): expected row-major elements without gaps, found ", view.shape,
                  " with a stride of ", from.strides[axis], " instead of ", dense, " along axis ", axis,
                  "; make the array contiguous first");
    });
    dense *= from.shape[axis];
  }
  if (view.count() != 0) {
    require(from.data != nullptr, [&] { return text("from_dlpack(): a null pointer for ", view.shape); });
    view.data = static_cast<std::byte*>(from.data) + from.byte_offset;
  }
  return view;
}

template <class Managed>
struct DlpackOwner {
  explicit DlpackOwner(Managed* managed) : managed_(managed) {}
  ~DlpackOwner() {
    if (managed_->deleter != nullptr) managed_->deleter(managed_);
  }
  DlpackOwner(DlpackOwner const&) = delete;
  DlpackOwner& operator=(DlpackOwner const&) = delete;
  Managed* managed_;
};

template <class Managed>
struct DlpackExport {
  explicit DlpackExport(Tensor exported) : tensor(std::move(exported)) {
    TensorView const& view = tensor.view();
    std::int64_t dense = 1;
    for (std::size_t axis = view.shape.dimensions(); axis-- > 0;) {
      shape[axis] = static_cast<std::int64_t>(view.shape[axis]);
      strides[axis] = dense;
      dense *= shape[axis];
    }
    bool const on_gpu = view.device.kind == DeviceKind::cuda;
    DLTensor& out = managed.dl_tensor;
    out.data = view.data;
    out.device = {on_gpu ? kDLCUDA : kDLCPU, on_gpu ? logical_device(view.device).visible : 0};
    out.ndim = static_cast<std::int32_t>(view.shape.dimensions());
    out.dtype = dlpack_type(view.dtype);
    out.shape = shape.data();
    out.strides = strides.data();
    out.byte_offset = 0;
    managed.manager_ctx = this;
    managed.deleter = [](Managed* self) { delete static_cast<DlpackExport*>(self->manager_ctx); };
  }
  Tensor tensor;
  std::array<std::int64_t, Shape::kMaxDimensions> shape{};
  std::array<std::int64_t, Shape::kMaxDimensions> strides{};
  Managed managed{};
};

}  // namespace detail

/// `tensor` for another library, which calls the result's deleter once when it needs it no more; until then
/// the memory lives. The device is CUDA's number of the GPU in this process, or the CPU. DLPack knows no
/// streams: whoever reads on another stream than the one that wrote makes it wait.
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
/// for memory that must not be written, since whoever has a Tensor may write it.
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
