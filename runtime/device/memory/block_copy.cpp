#include "device/memory/block_copy.hpp"

#include <cstring>

#include "ddp/core/text.hpp"
#include "device/cuda/backend.hpp"

namespace ddp {

void copy_whole(TensorView const& to, TensorView const& from, Stream& stream) {
  std::size_t const bytes = from.bytes();
  copy_block({to.data, from.data, bytes, bytes, bytes, 1, to.device, from.device}, stream);
}

void copy_block(BlockCopy const& copy, Stream& stream) {
  if (copy.width == 0 || copy.rows == 0) return;
  Device const on = stream.device();
  bool const on_host = copy.to_device.kind == DeviceKind::cpu && copy.from_device.kind == DeviceKind::cpu;
  if (on.kind == DeviceKind::cuda) {
    require(on_host || copy.to_device == on || copy.from_device == on, [&] {
      return text("a copy from ", copy.from_device, " to ", copy.to_device, " on a stream of ", on);
    });
    cuda::copy_block(copy, stream);
    return;
  }
  require(on_host, [&] {
    return text("a copy from ", copy.from_device, " to ", copy.to_device,
                " needs a stream of the GPU, found one of ", on);
  });
  host_stream(stream).enqueue([copy] {
    auto* to = static_cast<std::byte*>(copy.to);
    auto const* from = static_cast<std::byte const*>(copy.from);
    bool const dense = copy.rows == 1 || (copy.to_pitch == copy.width && copy.from_pitch == copy.width);
    std::size_t const width = dense ? copy.width * copy.rows : copy.width;
    for (std::size_t row = 0; row < (dense ? 1 : copy.rows); ++row) {
      std::memcpy(to + row * copy.to_pitch, from + row * copy.from_pitch, width);
    }
  });
}

}  // namespace ddp
