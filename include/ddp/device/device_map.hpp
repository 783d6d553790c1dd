// Which device is which: physical, visible, virtual and logical numbers in one table.
#pragma once

#include <string>
#include <vector>

#include "ddp/core/export.hpp"
#include "ddp/device/logical_device.hpp"

namespace DDP_EXPORT ddp {

/// All devices of a process and all GPUs of the driver. Plain values, true when they were read.
struct DeviceMap {
  std::vector<LogicalDevice> logical;  ///< cuda:0, cuda:1, …, then cpu:0, …; cuda:0 is the primary device
  /// In the order of PCI. find_gpu() gives that of a logical device; those of none are hidden.
  std::vector<PhysicalGpu> gpus;
};

/// The map of this process, from the driver's list (NVML, about 20 ms), CUDA_VISIBLE_DEVICES,
/// DDP_VIRTUAL_DEVICES, set_visible_devices() and set_logical_devices(). Neither starts CUDA nor fixes which
/// devices are visible. Without a driver it has the CPU alone. Any thread.
[[nodiscard]] DeviceMap device_map();

/// A line for each device, hidden ones last: "cuda:0 -> physical 3: NVIDIA H200, pci 0000:06:00.0, sm_90,
/// 139.8 GiB (12.1 used), uuid GPU-8c0f…", "cpu:1 -> CPU, virtual 1 of 2, at most 1 GiB".
[[nodiscard]] std::string to_text(DeviceMap const& map);

/// An object with "logical" and "hidden", arrays; docs/devices.md names the fields.
[[nodiscard]] std::string to_json(DeviceMap const& map);

/// The processes on it that the driver knows: ", in use by pid 4711, 4712"; empty if there are none.
[[nodiscard]] std::string users_of(PhysicalGpu const& gpu);

}  // namespace ddp
