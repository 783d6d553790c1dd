// Which device is which: physical, visible, virtual and logical numbers in one table.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ddp/core/device.hpp"
#include "ddp/core/export.hpp"
#include "ddp/core/ids.hpp"
#include "ddp/device/inventory.hpp"

namespace DDP_EXPORT ddp {

/// A row of the map: one logical device, and what is behind it.
struct MappedDevice {
  Device device;                 ///< how a program addresses it
  int visible = 0;               ///< CUDA's number of the GPU; 0 for a CPU
  int slice = 0;                 ///< which of the visible device's virtual devices
  int slices = 1;                ///< how many it has; 1: it is not cut
  std::optional<Bytes> limit{};  ///< of memory for this process; nullopt: none
  std::string uuid = {};         ///< of the GPU or MIG instance; empty for a CPU
  PhysicalGpu gpu = {};          ///< as the driver lists it; index, the physical number, is -1 for a CPU
};

/// All devices of a process and the GPUs that it does not see. Plain values, true when they were read.
struct DeviceMap {
  std::vector<MappedDevice>
      logical;  ///< cuda:0, cuda:1, …, then cpu:0, …; the first GPU is the primary device
  std::vector<PhysicalGpu> hidden;  ///< GPUs of the driver that are not visible, in the order of PCI
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
