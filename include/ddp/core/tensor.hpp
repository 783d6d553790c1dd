// Memory with a shape: a view, and an owner.
#pragma once

#include <array>
#include <cstddef>
#include <initializer_list>
#include <memory>
#include <ostream>
#include <span>
#include <string>

#include "ddp/core/device.hpp"
#include "ddp/core/dtype.hpp"
#include "ddp/core/error.hpp"
#include "ddp/core/export.hpp"

namespace DDP_EXPORT ddp {

/// Extents of a dense, row-major array. At most kMaxDimensions; none is a scalar (one element).
class Shape {
 public:
  static constexpr std::size_t kMaxDimensions = 8;  ///< of any shape

  constexpr Shape() noexcept = default;
  /// Throws Error(invalid_argument) for more than kMaxDimensions, or more elements than memory can have.
  Shape(std::initializer_list<std::size_t> extents);
  explicit Shape(std::span<std::size_t const> extents);  ///< The same from a run of extents.

  /// How many extents it has.
  [[nodiscard]] std::size_t dimensions() const noexcept { return dimensions_; }
  /// Elements along `axis`, which is less than dimensions().
  [[nodiscard]] std::size_t operator[](std::size_t axis) const noexcept { return extents_[axis]; }
  /// All of them, outermost first.
  [[nodiscard]] std::span<std::size_t const> extents() const noexcept {
    return {extents_.data(), dimensions_};
  }
  /// Product of the extents.
  [[nodiscard]] std::size_t count() const noexcept;
  friend bool operator==(Shape const&, Shape const&) noexcept = default;  ///< Equal extents.

 private:
  std::array<std::size_t, kMaxDimensions> extents_{};
  std::size_t dimensions_ = 0;
};

/// "[300,784]"; a scalar is "[]".
[[nodiscard]] std::string to_string(Shape const& shape);
inline std::ostream& operator<<(std::ostream& out, Shape const& shape) { return out << to_string(shape); }

/// A view of dense row-major memory on one device. Owns nothing; copying it copies no element.
/// Constness is shallow, as with std::span. `data` may be null only when the shape has no elements.
struct TensorView {
  void* data = nullptr;      ///< the first element
  Shape shape{};             ///< row-major
  DType dtype = DType::f32;  ///< of each element
  Device device{};           ///< where the memory lies; not said: cpu:0

  [[nodiscard]] std::size_t count() const noexcept { return shape.count(); }  ///< Elements.
  /// Bytes of all elements.
  [[nodiscard]] std::size_t bytes() const noexcept { return count() * size_of(dtype); }
  /// The elements as `T`. Throws Error(invalid_argument) if the dtype is another or the memory is not the
  /// host's.
  template <class T>
  [[nodiscard]] std::span<T> as() const {
    require(dtype == dtype_of<T>, "TensorView::as<T>: the tensor has another dtype");
    require(device.kind == DeviceKind::cpu, "TensorView::as<T>: the tensor is not in host memory");
    return {static_cast<T*>(data), count()};
  }
};

/// A view of host memory of `elements`, one-dimensional.
template <class T>
[[nodiscard]] TensorView view_of(std::span<T> elements) {
  return {elements.data(), Shape{elements.size()}, dtype_of<T>, Device{}};
}

/// A one-dimensional view of `count` elements of `whole`, from element `offset` on.
[[nodiscard]] TensorView slice(TensorView const& whole, std::size_t offset, std::size_t count);

/// "f32[300,784] on cpu:0".
[[nodiscard]] std::string describe(TensorView const& view);

/// Memory that is freed with its last owner. Copies share it.
class Tensor {
 public:
  Tensor() = default;
  /// Takes a view and whatever keeps its memory alive.
  Tensor(TensorView view, std::shared_ptr<void> owner) : view_(view), owner_(std::move(owner)) {}
  /// Zeroed host memory, 64-byte aligned. Throws Error(out_of_memory).
  [[nodiscard]] static Tensor zeros(Shape const& shape, DType dtype);

  /// Valid while this Tensor or a copy lives.
  [[nodiscard]] TensorView const& view() const noexcept { return view_; }
  [[nodiscard]] operator TensorView() const noexcept { return view_; }  ///< view().
  /// As TensorView::as().
  template <class T>
  [[nodiscard]] std::span<T> as() const {
    return view_.as<T>();
  }

 private:
  TensorView view_;
  std::shared_ptr<void> owner_;
};

}  // namespace ddp
