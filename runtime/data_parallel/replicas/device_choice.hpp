// On which devices replicas are. It has no .cpp, since ddp::libtorch includes it too.
#pragma once

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ddp/core/ids.hpp"
#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"
#include "ddp/device/logical_device.hpp"

namespace ddp {

/// Those that a program names, otherwise every logical GPU.
[[nodiscard]] inline std::vector<Device> chosen_devices(std::optional<std::vector<Device>> const& named) {
  if (named) return *named;
  std::vector<Device> all;
  for (LogicalDevice const& gpu : logical_devices()) all.push_back(gpu.device);
  return all;
}

/// Throws Error(not_found) for one that is not there (D6); Error(invalid_argument) for CPUs beside GPUs.
inline void require_one_kind(std::span<Device const> devices) {
  require_devices(devices);
  auto const is_another = [&](Device device) { return device.kind != devices[0].kind; };
  require(std::ranges::none_of(devices, is_another),
          [&] { return text("device_ids must be GPUs only, or CPUs only, found ", join(devices, ", ")); });
}

/// What P10 compares.
struct DeviceSize {
  Device device;
  Bytes memory{};
  int cores = 0;  ///< streaming multiprocessors
};

/// The warning for devices of which one has less than 75 % of another's memory or cores; nothing if none has.
[[nodiscard]] inline std::optional<std::string> describe_imbalance(std::span<DeviceSize const> devices) {
  auto const compare = [&](char const* what, auto const& size,
                           auto const& words) -> std::optional<std::string> {
    auto const [small, large] = std::ranges::minmax_element(devices, {}, size);
    if (devices.empty() || 4 * size(*small) >= 3 * size(*large)) return std::nullopt;
    return text("replicas are only as fast as the slowest: ", small->device, " has less than 75 % of ",
                large->device, "'s ", what, " (", words(*small), " of ", words(*large),
                "); to exclude it, leave ", small->device, " out of device_ids",
                small->device.kind == DeviceKind::cuda ? ", or out of CUDA_VISIBLE_DEVICES" : "");
  };
  auto const cores = [](DeviceSize const& each) { return each.cores; };
  auto const of_memory = compare(
      "memory", [](DeviceSize const& each) { return each.memory.value; },
      [](DeviceSize const& each) { return to_string(each.memory); });
  return of_memory ? of_memory : compare("cores", cores, cores);
}

/// Logs it, by the devices' memory limits, or all their memory; and their cores.
inline void warn_of_imbalance(std::span<Device const> devices) {
  std::vector<DeviceSize> sizes;
  for (Device const device : devices) {
    LogicalDevice const& there = logical_device(device);
    sizes.push_back({device, there.limit ? *there.limit : memory_info(device).total, there.sms});
  }
  if (auto const warning = describe_imbalance(sizes)) log(LogLevel::warning, *warning);
}

}  // namespace ddp
