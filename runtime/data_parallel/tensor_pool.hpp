// Memory that every step uses again.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "ddp/core/tensor.hpp"
#include "ddp/device/stream.hpp"

namespace ddp {

/// Hands out memory that has no other owner, so that every step uses the same few pieces. Memory that a
/// program still holds stays as it is. The last owner of memory waits for the stream before it is freed. One
/// thread at a time.
class TensorPool {
 public:
  /// Memory of `device`, for work in order on `stream`.
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
