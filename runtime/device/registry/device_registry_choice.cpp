// How a program chooses and cuts its devices, before they are settled.
#include <algorithm>
#include <set>

#include "ddp/core/error.hpp"
#include "ddp/core/text.hpp"
#include "device/registry/device_registry.hpp"

namespace ddp {
namespace {

/// "this process was started with 2 GPUs (0 = NVIDIA H200, 1 = NVIDIA H200)".
std::string started_with(std::span<PhysicalDevice const> devices, DeviceKind kind) {
  std::vector<std::string> each;
  for (PhysicalDevice const& device : devices) each.push_back(text(device.number, " = ", device.name()));
  return text("this process was started with ",
              counted(devices.size(), kind == DeviceKind::cpu ? "CPU" : "GPU"),
              devices.empty() ? "" : text(" (", join(each, ", "), ")"));
}

}  // namespace

void DeviceRegistry::refuse_if_late(std::string const& call, DeviceKind kind) {
  if (is_settled(kind)) {
    std::string const by = of(kind).settled_by.empty() ? "use of a device" : of(kind).settled_by;
    throw Error(ErrorCode::invalid_state, text(call, " comes too late: ", by, " has already settled which ",
                                               kind == DeviceKind::cpu ? "CPU" : "GPU",
                                               " devices this process has; move the line before the first ",
                                               by, ", best to the start of main()"));
  }
  if (kind == DeviceKind::cuda && sources_.cuda_in_use()) {
    throw Error(
        ErrorCode::invalid_state,
        text(call, " comes too late: other code of this process has already initialised CUDA, which reads ",
             kVisibleVariable,
             " only then; move the line before the first use of CUDA, best to the start of main(), or set ",
             kVisibleVariable, " before the program starts"));
  }
}

void DeviceRegistry::set_visible(std::span<int const> numbers) {
  std::lock_guard const lock(mutex_);
  std::string const call = text("set_visible_devices({", join(numbers, ","), "})");
  refuse_if_late(call, DeviceKind::cuda);
  auto const physical = this->physical(DeviceKind::cuda);
  std::vector<GpuId> ids;
  std::set<int> seen;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    int const number = numbers[i];
    if (number < 0 || static_cast<std::size_t>(number) >= physical.size()) {
      throw Error(ErrorCode::not_found,
                  text(call, ": entry ", i + 1, ", ", number,
                       ", is no physical device: ", started_with(physical, DeviceKind::cuda)));
    }
    ddp::require(seen.insert(number).second,
                 text(call, ": entry ", i + 1, ", ", number, ", stands there twice"));
    ids.push_back(physical[static_cast<std::size_t>(number)].uuid);
  }
  for (auto const& [number, limits] : of(DeviceKind::cuda).cuts) {
    ddp::require(seen.contains(number),
                 text(call, " hides physical device ", number, ", which set_logical_devices() has made ",
                      limits.size(), " logical devices of"));
  }
  if (!inherited_) inherited_ = sources_.get_variable(kVisibleVariable);
  sources_.set_variable(kVisibleVariable, join(ids, ","));
  chosen_ = call;
  chosen_numbers_.assign(numbers.begin(), numbers.end());
}

void DeviceRegistry::set_logical(VirtualDevices const& cut) {
  std::lock_guard const lock(mutex_);
  std::string const call = text("set_logical_devices() of ", to_string(cut.kind), " ", cut.physical);
  refuse_if_late(call, cut.kind);
  ddp::require(!cut.limits.empty() && cut.limits.size() <= kMaxSlices,
               text(call, ": expected 1 to ", kMaxSlices, " limits, one for each virtual device, found ",
                    cut.limits.size()));
  std::size_t sum = 0;
  for (std::size_t i = 0; i < cut.limits.size(); ++i) {
    if (!cut.limits[i]) continue;
    ddp::require(cut.limits[i]->value > 0,
                 text(call, ": limit ", i + 1, " is 0 B; std::nullopt stands for no limit"));
    sum += std::min(cut.limits[i]->value, SIZE_MAX - sum);
  }
  auto const physical = this->physical(cut.kind);
  if (cut.physical < 0 || static_cast<std::size_t>(cut.physical) >= physical.size()) {
    throw Error(ErrorCode::not_found,
                text(call, ": there is no such physical device: ", started_with(physical, cut.kind)));
  }
  bool const hidden = cut.kind == DeviceKind::cuda && !chosen_.empty() &&
                      std::ranges::find(chosen_numbers_, cut.physical) == chosen_numbers_.end();
  ddp::require(!hidden, text(call, ": ", chosen_, " hides that device"));
  PhysicalDevice const& device = physical[static_cast<std::size_t>(cut.physical)];
  if (device.gpu) {
    auto const memory = find_gpu(std::span(&*device.gpu, 1), device.uuid).value().memory();
    ddp::require(!memory || sum <= memory->total.value, [&] {
      return text(call, ": the limits are ", to_string(Bytes{sum}), " together, and the card has ",
                  to_string(memory->total));
    });
  }
  of(cut.kind).cuts[cut.physical] = cut.limits;
}

std::vector<PhysicalDevice> list_physical_devices(DeviceKind kind) {
  return DeviceRegistry::of_process().physical(kind);
}

void set_visible_devices(std::span<int const> numbers) { DeviceRegistry::of_process().set_visible(numbers); }

void set_logical_devices(VirtualDevices const& cut) { DeviceRegistry::of_process().set_logical(cut); }

}  // namespace ddp
