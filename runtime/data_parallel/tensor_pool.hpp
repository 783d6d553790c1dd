// Memory that every step writes anew.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "ddp/core/tensor.hpp"
#include "ddp/device/stream.hpp"

namespace ddp {

/// Hands out memory again that nobody holds any more, and so the same few pieces in every step, but never
/// what somebody still holds: what a program keeps stays as it is. The last owner of memory of a GPU waits
/// for the stream before it goes. One thread at a time.
class TensorPool {
 public:
  /// Of `device`, for work in order on `stream`.
  TensorPool(Device device, std::shared_ptr<Stream> stream) : device_(device), stream_(std::move(stream)) {}

  [[nodiscard]] Device device() const noexcept { return device_; }
  /// The smallest free piece that is large enough. Contents are whatever was there. On a CPU beside GPUs the
  /// memory is pinned. Throws Error(out_of_memory).
  [[nodiscard]] Tensor take(Shape const& shape, DType dtype);

 private:
  Device device_;
  std::shared_ptr<Stream> stream_;
  std::vector<std::shared_ptr<Tensor>> pieces_;
};

}  // namespace ddp
