#include "data_parallel/replicas/direct_exchange.hpp"

#include <algorithm>

#include "comm/group/rank_location.hpp"
#include "comm/group/shared_gpus.hpp"
#include "comm/kernels/add_elements.hpp"
#include "ddp/device/logical_device.hpp"
#include "ddp/device/memory.hpp"
#include "device/memory/block_copy.hpp"

namespace ddp {
namespace {

bool is_one_gpu(Device a, Device b) {
  return a.kind == DeviceKind::cpu || logical_device(a).visible == logical_device(b).visible;
}

}  // namespace

std::string cards_in_common(std::span<Device const> devices) {
  std::vector<RankLocation> locations;
  for (Device const device : devices) locations.push_back(location_of(device, {}));
  return shared_gpus(locations);
}

DirectExchange::DirectExchange(std::span<Device const> devices, FlatLayout const& layout) {
  if (std::ranges::all_of(devices, [&](Device device) { return is_one_gpu(devices[0], device); })) return;
  std::size_t bytes = 0;
  for (FlatLayout::Message const& message : layout.messages) bytes = std::max(bytes, message.bytes());
  arrived_ = zeros(Shape{bytes}, DType::u8, devices[0]);
}

void DirectExchange::add(TensorView const& sum, std::span<TensorView const> others, Stream& stream) {
  std::vector<void const*> here;
  for (TensorView const& other : others) {
    if (is_one_gpu(sum.device, other.device)) here.push_back(other.data);
  }
  add_elements(sum.data, here, sum.count(), sum.dtype, stream);
  for (TensorView const& other : others) {
    if (is_one_gpu(sum.device, other.device)) continue;
    TensorView const arrived{arrived_.view().data, sum.shape, sum.dtype, sum.device};
    copy_whole(arrived, other, stream);
    void const* const addend = arrived.data;
    add_elements(sum.data, {&addend, 1}, sum.count(), sum.dtype, stream);
  }
}

}  // namespace ddp
