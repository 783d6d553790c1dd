#include "device/memory/memory_place.hpp"

#include "ddp/core/text.hpp"
#include "ddp/device/logical_device.hpp"
#include "device/cuda/backend.hpp"

namespace ddp {

std::string why_memory_is_elsewhere(TensorView const& view, std::optional<MemoryPlace> found, int visible) {
  using Kind = MemoryPlace::Kind;
  if (!found || found->kind == Kind::managed) return {};
  if (view.device.kind == DeviceKind::cpu) {
    if (found->kind != Kind::gpu) return {};
    return text(describe(view), ", and its address ", view.data, " is memory of a GPU (CUDA's number ",
                found->visible, "): say so in TensorView::device, which is cpu:0 where nothing is said");
  }
  if (found->kind == Kind::plain) {
    return text(describe(view), ", and its address ", view.data,
                " is no memory of a GPU, but of the host: expected what zeros(), cudaMalloc() or a pool of "
                "CUDA's gave; or say cpu:0 in TensorView::device");
  }
  if (found->kind == Kind::gpu && found->visible != visible) {
    return text(describe(view), ", which is CUDA's number ", visible, ", and its address ", view.data,
                " is memory of CUDA's number ", found->visible);
  }
  return {};
}

std::string why_memory_is_elsewhere(TensorView const& view) {
  auto const found = cuda::place_of(view.data);
  if (!found) return {};
  int const visible = view.device.kind == DeviceKind::cuda ? *logical_device(view.device).visible : 0;
  return why_memory_is_elsewhere(view, found, visible);
}

}  // namespace ddp
