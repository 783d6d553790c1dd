#include "ddp/device/memory.hpp"

#include "ddp/device/device_placement.hpp"
#include "ddp/device/device_scope.hpp"
#include "ddp/device/logical_device.hpp"
#include "device/api_call.hpp"
#include "device/cuda_backend.hpp"

namespace ddp {

namespace {

Tensor zeros_there(Shape const& shape, DType dtype, Device device) {
  if (device.kind == DeviceKind::cuda) return cuda::zeros(shape, dtype, device);
  Tensor const memory = Tensor::zeros(shape, dtype);
  TensorView view = memory.view();
  view.device = device;
  return {view, std::make_shared<Tensor>(memory)};
}

}  // namespace

Tensor zeros(Shape const& shape, DType dtype, Device device) {
  ApiCall const call("zeros()");
  Tensor made = zeros_there(shape, dtype, place_device(device));
  log_placement("buffer", made);
  return made;
}

Tensor zeros(Shape const& shape, DType dtype) { return zeros(shape, dtype, default_device()); }

Tensor pinned_zeros(Shape const& shape, DType dtype) { return cuda::pinned_zeros(shape, dtype); }

PoolUse pool_use(Device device) {
  ApiCall const call("pool_use()");
  static_cast<void>(logical_device(device));
  return cuda::pool_use(device);
}

}  // namespace ddp
