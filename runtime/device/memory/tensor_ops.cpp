#include "ddp/device/tensor_ops.hpp"

#include <cstring>

#include "ddp/core/text.hpp"
#include "ddp/device/device_placement.hpp"
#include "device/cuda/backend.hpp"
#include "device/info/api_call.hpp"
#include "device/memory/block_copy.hpp"

namespace ddp {
namespace {

void check_copy(TensorView const& to, TensorView const& from, Device device) {
  auto const fits = [&](TensorView const& view) {
    return view.device == device || view.device.kind == DeviceKind::cpu;
  };
  require(to.count() == from.count() && to.dtype == from.dtype && fits(to) && fits(from), [&] {
    return text("copy_elements: cannot copy ", describe(from), " to ", describe(to), " on a stream of ",
                device);
  });
}

}  // namespace

void zero_fill(TensorView const& tensor, Stream& stream) {
  if (tensor.bytes() == 0) return;
  if (stream.device().kind == DeviceKind::cuda) {
    cuda::zero_fill(tensor, stream);
    return;
  }
  host_stream(stream).enqueue([data = tensor.data, bytes = tensor.bytes()] { std::memset(data, 0, bytes); });
}

void copy_elements(TensorView const& to, TensorView const& from, Stream& stream) {
  check_copy(to, from, stream.device());
  if (to.bytes() == 0 || to.data == from.data) return;
  copy_whole(to, from, stream);
}

void copy_elements(std::span<Copy const> copies, Stream& stream) {
  for (Copy const& copy : copies) check_copy(copy.to, copy.from, stream.device());
  if (stream.device().kind == DeviceKind::cuda) {
    cuda::copy(copies, stream);
    return;
  }
  for (Copy const& copy : copies) copy_elements(copy.to, copy.from, stream);
}

std::unique_ptr<Stream> make_compute_stream(Device device) {
  ApiCall const call("make_compute_stream()");
  device = place_device(device);
  if (device.kind == DeviceKind::cuda) return cuda::make_stream(device, false);
  return HostStream::inline_stream(device.index);
}

std::unique_ptr<Stream> make_comm_stream(Device device) {
  ApiCall const call("make_comm_stream()");
  device = place_device(device);
  if (device.kind == DeviceKind::cuda) return cuda::make_stream(device, true);
  return std::make_unique<HostStream>(device.index);
}

}  // namespace ddp
