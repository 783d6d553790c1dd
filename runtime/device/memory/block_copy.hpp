// Copies of blocks between devices: what scatter and gather are made of.
#pragma once

#include <cstddef>

#include "ddp/core/device.hpp"
#include "ddp/core/tensor.hpp"
#include "ddp/device/stream.hpp"

namespace ddp {

/// `rows` runs of `width` bytes each; runs begin `to_pitch` and `from_pitch` bytes apart. Between any two
/// devices.
struct BlockCopy {
  void* to = nullptr;
  void const* from = nullptr;
  std::size_t to_pitch = 0;
  std::size_t from_pitch = 0;
  std::size_t width = 0;
  std::size_t rows = 0;
  Device to_device;
  Device from_device;
};

/// Enqueues the copy on `stream`, which is of one of the two devices, or of any CPU if both are CPUs. Memory
/// that is not pinned makes the host wait, as with copy_elements().
void copy_block(BlockCopy const& copy, Stream& stream);
/// Copies a whole tensor to another one with as many bytes. Both are dense.
void copy_whole(TensorView const& to, TensorView const& from, Stream& stream);

}  // namespace ddp
