// DLPack's types and devices as this library's, and the reverse.
#pragma once

#ifndef DLPACK_DLPACK_H_  // of any copy of DLPack's header that was included before
#include <dlpack/dlpack.h>
#endif

#include <array>
#include <cstddef>
#include <cstdint>
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

/// Owns another library's array: the destructor calls the array's deleter.
struct DlpackOwner {
  /// Takes `managed`.
  explicit DlpackOwner(DLManagedTensor* managed) : managed_(managed) {}
  ~DlpackOwner() {
    if (managed_->deleter != nullptr) managed_->deleter(managed_);
  }
  DlpackOwner(DlpackOwner const&) = delete;
  DlpackOwner& operator=(DlpackOwner const&) = delete;
  DLManagedTensor* managed_;  ///< the array
};

/// A Tensor for another library, with the arrays that `managed` points to. Its deleter deletes this object.
struct DlpackExport {
  /// Keeps `exported`.
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
    out.device = {on_gpu ? kDLCUDA : kDLCPU, on_gpu ? *logical_device(view.device).visible : 0};
    out.ndim = static_cast<std::int32_t>(view.shape.dimensions());
    out.dtype = dlpack_type(view.dtype);
    out.shape = shape.data();
    out.strides = strides.data();
    out.byte_offset = 0;
    managed.manager_ctx = this;
    managed.deleter = [](DLManagedTensor* self) { delete static_cast<DlpackExport*>(self->manager_ctx); };
  }
  Tensor tensor;                                              ///< whose memory it is
  std::array<std::int64_t, Shape::kMaxDimensions> shape{};    ///< extents
  std::array<std::int64_t, Shape::kMaxDimensions> strides{};  ///< in elements
  DLManagedTensor managed{};                                  ///< what is handed over
};

}  // namespace detail
}  // namespace ddp
