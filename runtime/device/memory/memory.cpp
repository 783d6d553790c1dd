#include "ddp/device/memory.hpp"

#include "ddp/core/text.hpp"
#include "ddp/device/device_placement.hpp"
#include "ddp/device/device_scope.hpp"
#include "ddp/device/logical_device.hpp"
#include "ddp/device/tensor_ops.hpp"
#include "device/cuda/backend.hpp"
#include "device/info/api_call.hpp"
#include "device/memory/block_copy.hpp"
#include "device/memory/memory_account.hpp"

namespace ddp {
namespace {

// Members are destroyed last to first, so memory counts until it is freed.
struct CountedMemory {
  std::shared_ptr<void> count;
  Tensor memory;
};

Tensor counted_zeros(Shape const& shape, DType dtype, Device device) {
  auto count = count_memory(device, Bytes{shape.count() * size_of(dtype)}, text(dtype, shape));
  Tensor memory =
      device.kind == DeviceKind::cuda ? cuda::zeros(shape, dtype, device) : Tensor::zeros(shape, dtype);
  TensorView view = memory.view();
  view.device = device;
  return {view, std::make_shared<CountedMemory>(CountedMemory{std::move(count), std::move(memory)})};
}

}  // namespace

Tensor zeros(Shape const& shape, DType dtype, Device device) {
  ApiCall const call("zeros()");
  Tensor made = counted_zeros(shape, dtype, place_device(device));
  log_placement("buffer", made);
  return made;
}

Tensor zeros(Shape const& shape, DType dtype) { return zeros(shape, dtype, default_device()); }

Tensor pinned_zeros(Shape const& shape, DType dtype) { return cuda::pinned_zeros(shape, dtype); }

Tensor to(TensorView const& from, Device device, Stream& stream) {
  device = place_device(device);
  Tensor made = zeros(from.shape, from.dtype, device);
  if (from.bytes() == 0) return made;
  copy_whole(made, from, stream);
  stream.synchronize();
  return made;
}

Tensor to(TensorView const& from, Device device) {
  device = place_device(device);
  bool const to_cpu = device.kind == DeviceKind::cpu;
  return to(from, device, *make_compute_stream(to_cpu ? from.device : device));
}

MemoryStats memory_stats(Device device) {
  ApiCall const call("memory_stats()");
  MemoryStats use = MemoryAccount::of(device).use();
  if (device.kind == DeviceKind::cuda) use.reserved = cuda::pool_reserved(device);
  return use;
}

void reset_peak_memory_stats(Device device) {
  ApiCall const call("reset_peak_memory_stats()");
  MemoryAccount::of(device).reset_peak_memory_stats();
}

void empty_cache(Device device) {
  ApiCall const call("empty_cache()");
  static_cast<void>(logical_device(device));
  if (device.kind == DeviceKind::cuda) cuda::empty_cache(device);
}

}  // namespace ddp
