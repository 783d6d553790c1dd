#include "ddp/device/tensor_ops.hpp"

#include <cstring>

#include "ddp/core/text.hpp"

namespace ddp {

void zero_fill(TensorView const& tensor, Stream& stream) {
  if (tensor.bytes() == 0) return;
  host_stream(stream).enqueue([data = tensor.data, bytes = tensor.bytes()] { std::memset(data, 0, bytes); });
}

void copy_elements(TensorView const& to, TensorView const& from, Stream& stream) {
  require(to.count() == from.count() && to.dtype == from.dtype && to.device == from.device,
          [&] { return text("copy_elements: cannot copy ", describe(from), " to ", describe(to)); });
  if (to.bytes() == 0 || to.data == from.data) return;
  host_stream(stream).enqueue(
      [to = to.data, from = from.data, bytes = to.bytes()] { std::memcpy(to, from, bytes); });
}

}  // namespace ddp
