// Many tensors in few messages.
#pragma once

#include <cstddef>
#include <limits>
#include <span>
#include <vector>

#include "ddp/core/ids.hpp"
#include "ddp/core/tensor.hpp"
#include "ddp/device/stream.hpp"
#include "ddp/device/tensor_ops.hpp"

namespace ddp {

/// Which message each tensor is in: a large one is a message of its own, sent and received where it lies;
/// small ones of one dtype share one, or several of at most `most`. It depends on shapes and dtypes only, so
/// that all replicas agree.
struct FlatLayout {
  static constexpr Bytes kSmall = 256_KiB;  ///< below it a copy costs less than a message
  static constexpr Bytes kNoLimit{std::numeric_limits<std::size_t>::max()};

  struct Message {
    DType dtype = DType::f32;
    std::size_t count = 0;  ///< elements
    bool packed = false;    ///< shared by small tensors
    [[nodiscard]] std::size_t bytes() const noexcept { return count * size_of(dtype); }
  };
  struct Place {
    std::size_t message = 0;
    std::size_t offset = 0;  ///< in elements
  };

  FlatLayout() = default;
  explicit FlatLayout(std::span<TensorView const> tensors, Bytes small = kSmall, Bytes most = kNoLimit);

  std::vector<Message> messages;
  std::vector<Place> places;  ///< by tensor
};

/// The messages of one replica's tensors.
class CoalescedTensors {
 public:
  CoalescedTensors() = default;
  /// Tensors that stay where they are; the small ones are copied to and from a pack on their device.
  CoalescedTensors(FlatLayout const& layout, std::span<TensorView const> tensors, Device device);
  /// Memory for all messages, on `device`: tensors are views of messages, and nothing is ever copied.
  CoalescedTensors(FlatLayout const& layout, Device device);

  [[nodiscard]] std::span<TensorView const> messages() const noexcept { return messages_; }
  /// Where tensor `index` lies in its message.
  [[nodiscard]] TensorView place(FlatLayout const& layout, std::size_t index, Shape const& shape) const;

  /// The memory of messages, except for that of the tensors themselves.
  [[nodiscard]] std::vector<Tensor> const& memory() const noexcept { return memory_; }

  void pack(Stream& stream) const;                         ///< From the tensors to the messages.
  void unpack(Stream& stream) const;                       ///< Back.
  void pack(std::size_t message, Stream& stream) const;    ///< One message, if tensors share it.
  void unpack(std::size_t message, Stream& stream) const;  ///< Back.
  void zero(Stream& stream) const;                         ///< All elements of all messages = 0.

 private:
  std::vector<TensorView> messages_;
  std::vector<Tensor> memory_;
  std::vector<std::vector<Copy>> packing_;    // by message
  std::vector<std::vector<Copy>> unpacking_;  // by message
};

}  // namespace ddp
