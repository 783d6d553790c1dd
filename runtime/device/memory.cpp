#include "ddp/device/memory.hpp"

#include "device/cuda_backend.hpp"

namespace ddp {

Tensor zeros(Shape const& shape, DType dtype, Device device) {
  if (device.kind == DeviceKind::cuda) return cuda::zeros(shape, dtype, device);
  Tensor const memory = Tensor::zeros(shape, dtype);
  TensorView view = memory.view();
  view.device = device;
  return {view, std::make_shared<Tensor>(memory)};
}

Tensor pinned_zeros(Shape const& shape, DType dtype) { return cuda::pinned_zeros(shape, dtype); }

PoolUse pool_use(Device device) {
  static_cast<void>(logical_device(device));
  return cuda::pool_use(device);
}

}  // namespace ddp
