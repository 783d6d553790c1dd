// The devices from which a process may choose, and the choice of those that it sees.
#pragma once

#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ddp/core/device.hpp"
#include "ddp/core/export.hpp"
#include "ddp/device/inventory.hpp"

namespace DDP_EXPORT ddp {

/// A device that this process was started with: the CPU, or a GPU (or MIG instance) that the inherited
/// CUDA_VISIBLE_DEVICES leaves.
struct PhysicalDevice {
  DeviceKind kind = DeviceKind::cpu;  ///< CPU or GPU
  int number = 0;   ///< its place in list_physical_devices(): what set_visible_devices() counts
  GpuId uuid = {};  ///< "GPU-8c0f…" or "MIG-41b3…"; empty for the CPU
  /// As the driver lists it; of an instance, the GPU it is cut from; nullopt for the CPU.
  std::optional<PhysicalGpu> gpu = {};
  [[nodiscard]] std::string name() const { return gpu ? gpu->name : "CPU"; }  ///< "NVIDIA H200", "CPU"
};

/// The physical devices of one kind: one CPU; of GPUs those that the CUDA_VISIBLE_DEVICES with which this
/// process was started leaves, in its order. Without a driver or a GPU the list is empty. Asks NVML (about 20
/// ms); neither starts CUDA nor fixes what is visible. Any thread.
[[nodiscard]] std::vector<PhysicalDevice> list_physical_devices(DeviceKind kind);

/// From now on this process sees these GPUs only, in this order: `numbers` as list_physical_devices() gives
/// them; an empty list is no GPU at all. The first becomes cuda:0, the primary device. Must come before the
/// first use of CUDA in this process and before threads start, since it sets CUDA_VISIBLE_DEVICES (to UUIDs;
/// processes started later inherit that). A later call, still before the first use, replaces an earlier one.
/// Throws Error(invalid_state) if CUDA has been used, saying by whom and what to move;
/// Error(invalid_argument) for a number that appears twice, or if the list leaves out a device that
/// set_logical_devices() has cut; Error(not_found) for a number that is not there. Then nothing has changed.
void set_visible_devices(std::span<int const> numbers);
/// set_visible_devices({2, 1, 0})
inline void set_visible_devices(std::initializer_list<int> numbers) {
  set_visible_devices(std::span<int const>(numbers.begin(), numbers.size()));
}

}  // namespace ddp
