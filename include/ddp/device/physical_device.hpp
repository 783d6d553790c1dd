// What a process may choose its devices from, and the choice of what it sees.
#pragma once

#include <initializer_list>
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
  int number = 0;         ///< its place in list_physical_devices(): what set_visible_devices() counts
  std::string name = {};  ///< "NVIDIA H200", "CPU"
  std::string uuid = {};  ///< "GPU-8c0f…" or "MIG-41b3…"; empty for the CPU
  PhysicalGpu gpu =
      {};  ///< as the driver lists it (of an instance, the GPU it is cut from); index -1 for the CPU
};

/// The physical devices of one kind: one CPU; of GPUs those that the CUDA_VISIBLE_DEVICES with which
/// this process was started leaves, in its order. No driver and no GPU give an empty list. Asks NVML (about
/// 20 ms); CUDA is not started, and nothing is settled. Any thread.
[[nodiscard]] std::vector<PhysicalDevice> list_physical_devices(DeviceKind kind);

/// From now on this process sees these GPUs only, in this order: `numbers` as list_physical_devices() gives
/// them, none for no GPU at all. The first becomes cuda:0, the primary device. Must come before the
/// first use of CUDA in this process and before threads start, since it sets CUDA_VISIBLE_DEVICES (to UUIDs;
/// processes started later inherit that). A later call before that replaces an earlier one.
/// Throws Error(invalid_state) when CUDA has been used, by whom and what to move, Error(invalid_argument) for
/// a number that stands twice or that set_logical_devices() has cut and the list leaves out, Error(not_found)
/// for one that is not there; then nothing has changed.
void set_visible_devices(std::span<int const> numbers);
/// set_visible_devices({2, 1, 0})
inline void set_visible_devices(std::initializer_list<int> numbers) {
  set_visible_devices(std::span<int const>(numbers.begin(), numbers.size()));
}

}  // namespace ddp
