// Elements for cases of the contract suite, on whatever device the communicator carries.
#pragma once

#include <algorithm>
#include <chrono>
#include <memory>
#include <span>

#include "ddp/comm/communicator.hpp"
#include "ddp/core/deadline.hpp"
#include "ddp/device/memory.hpp"
#include "ddp/device/tensor_ops.hpp"
#include "support/errors.hpp"

namespace ddp::testing {

/// Elements in host memory, for the case to write and read, and a tensor of the communicator's device, for
/// the operation. On a CPU they are the same memory. They must not go before the stream that uses them is
/// done.
template <class T>
class Elements {
 public:
  /// `count` elements = `value`, `off` elements behind any nice alignment.
  Elements(Communicator const& comm, std::size_t count, T value = T{}, std::size_t off = 0)
      : storage_(std::make_unique<T[]>(count + off)), host_(storage_.get() + off, count) {
    std::fill_n(storage_.get(), count + off, value);
    view_ = view_of(host_);
    if (comm.device().kind == DeviceKind::cpu) {
      view_.device = comm.device();
      return;
    }
    memory_ = zeros(Shape{count + off}, dtype_of<T>, comm.device());
    view_ = slice(memory_, off, count);
  }
  /// In memory that is there already.
  explicit Elements(TensorView const& memory) : view_(memory) {
    if (memory.device.kind == DeviceKind::cpu) {
      host_ = memory.as<T>();
      return;
    }
    storage_ = std::make_unique<T[]>(memory.count());
    host_ = {storage_.get(), memory.count()};
  }
  Elements(Elements&&) noexcept = default;

  [[nodiscard]] std::span<T> host() const noexcept { return host_; }
  [[nodiscard]] TensorView const& view() const noexcept { return view_; }
  [[nodiscard]] TensorView part(std::size_t offset, std::size_t count) const {
    return slice(view_, offset, count);
  }

  /// The host's elements become the device's, ordered on `stream`.
  TensorView const& put(Stream& stream) const {
    if (apart()) copy_elements(view_, view_of(host_), stream);
    return view_;
  }
  /// The device's elements, behind everything on `stream`; the host waits.
  [[nodiscard]] std::span<T const> fetch(Stream& stream) const {
    if (apart()) copy_elements(view_of(host_), view_, stream);
    stream.synchronize();
    return host_;
  }

 private:
  [[nodiscard]] bool apart() const { return view_.data != host_.data(); }

  std::unique_ptr<T[]> storage_;  // std::vector<bool> has no elements to point to
  std::span<T> host_;
  Tensor memory_;
  TensorView view_;
};

/// `count` elements of T in memory from allocate(), from element `offset` on.
template <class T>
[[nodiscard]] TensorView elements_of(Tensor const& memory, std::size_t offset, std::size_t count) {
  auto* const first = static_cast<T*>(memory.view().data) + offset;
  return {first, Shape{count}, dtype_of<T>, memory.view().device};
}

/// A factor where the communicator's device can read it.
class Factor {
 public:
  Factor(Communicator const& comm, double value, Stream& stream) : memory_(comm, 1, value) {
    static_cast<void>(memory_.put(stream));
  }
  [[nodiscard]] ReduceOp scaled_sum() const {
    return ReduceOp::scaled_sum(*static_cast<double const*>(memory_.view().data));
  }

 private:
  Elements<double> memory_;
};

/// The error that `call` ends with, from the call itself or from the stream that it works on. The stream has
/// failed afterwards: go on with another.
template <class Expected = CommError, class Call>
[[nodiscard]] Expected failure_of(Stream& stream, Call call) {
  return error_of<Expected>([&] {
    call();
    stream.synchronize();
  });
}

}  // namespace ddp::testing
