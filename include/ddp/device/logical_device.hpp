// The devices that a program calls cuda:0, cuda:1, cpu:0: the visible devices, of which each that is cut is
// replaced by its virtual ones.
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

/// One logical device and the visible one behind it. A visible device that is cut by set_logical_devices(),
/// or by DDP_VIRTUAL_DEVICES=n in the environment (ddp-launch --virtual n sets it), becomes several logical
/// devices with consecutive numbers.
struct LogicalDevice {
  Device device;                    ///< cuda:index or cpu:index
  std::optional<int> visible = {};  ///< CUDA's number of the GPU in this process; nullopt for a CPU
  int slice = 0;                    ///< which of the visible device's logical devices this is
  int slices = 1;                   ///< how many of them there are; 1: the device is not cut
  std::string name;                 ///< "NVIDIA H200", "CPU"
  GpuId uuid;                       ///< of the GPU or MIG instance, "GPU-8c0f…"; empty for a CPU
  std::string pci_bus_id;           ///< "0000:06:00.0"; empty for a CPU
  int sms = 0;  ///< streaming multiprocessors, as CUDA says; 0 for a CPU, and in a DeviceMap
  /// The most memory that this process may have on it; nullopt: as much as there is.
  std::optional<Bytes> limit = {};
};

/// Whether this build can use GPUs at all.
[[nodiscard]] bool is_built_with_cuda() noexcept;

/// All logical devices of one kind, by index. There is at least one CPU, cpu:0; there is no GPU without a
/// driver, without a visible GPU, and in a build without CUDA. The first call for GPUs fixes what is visible
/// and how it is cut, and starts CUDA without opening a context; the first call for CPUs fixes how the CPU is
/// cut. The list lives as long as the process. Any thread. Throws Error(invalid_argument) if
/// DDP_VIRTUAL_DEVICES is no number.
[[nodiscard]] std::span<LogicalDevice const> list_logical_devices(DeviceKind kind);

/// list_logical_devices(DeviceKind::cuda).
[[nodiscard]] std::span<LogicalDevice const> logical_devices();

/// The entry of `device`. Throws Error(not_found) with what there is.
[[nodiscard]] LogicalDevice const& logical_device(Device device);

/// Throws Error(not_found) naming the first device that is not there, and what is there. If `devices` look
/// like physical numbers, the message says where those are.
void require_devices(std::span<Device const> devices);

/// Virtual devices: what one physical device is cut into.
struct VirtualDevices {
  DeviceKind kind = DeviceKind::cuda;             ///< of the physical device
  int physical = 0;                               ///< its number in list_physical_devices(kind)
  std::vector<std::optional<Bytes>> limits = {};  ///< one for each virtual device; nullopt: no limit
};

/// Makes virtual devices of a physical one, which must be visible. With two GPUs, cutting the first as
/// `{.physical = 0, .limits = {1_GiB, 1_GiB}}` gives three logical devices, of which cuda:0 and cuda:1 are on
/// the first. `{.kind = DeviceKind::cpu, .limits = {1_GiB, 1_GiB}}` makes cpu:0 and cpu:1. A later call for
/// the same device replaces an earlier one, and takes precedence over DDP_VIRTUAL_DEVICES. Throws
/// Error(invalid_state) once devices of that kind are fixed, naming the call that did it and what to move;
/// Error(not_found) for a device that is not there; Error(invalid_argument) for an empty list, a limit of 0,
/// more memory than the card has, or a device that set_visible_devices() hides. Then nothing has changed.
void set_logical_devices(VirtualDevices const& cut);

/// The memory of the device behind `device`: of a GPU as the driver says; of a CPU what this machine has, or
/// this container may have. Throws Error(not_found) for a device that is not there.
[[nodiscard]] MemoryInfo memory_info(Device device);

}  // namespace ddp
