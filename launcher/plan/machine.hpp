// What this machine has, as far as starting ranks needs to know.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "launcher/plan/cores.hpp"
#include "launcher/plan/device_list.hpp"

namespace ddp::launcher {

struct Machine {
  std::string host;
  int allowed_cores =
      1;  ///< hardware threads that this process may use: affinity, and quotas of cgroups, rounded up
  int physical_cores = 1;         ///< of those, counted up to 2: what the default number of ranks needs
  std::vector<Cpu> cpus;          ///< those of the affinity mask
  std::vector<PhysicalGpu> gpus;  ///< as read_inventory() gives them
  std::map<PhysicalIndex, int> gpu_nodes;  ///< see node_of()
  std::string gpu_problem;     ///< Inventory::problem, where a driver is there; otherwise none is expected
  std::string driver_version;  ///< Inventory's, as are the next two, which only --check asks for
  std::string cuda_version;
  std::vector<std::vector<PeerAccess>> peers;
  std::optional<std::string> cuda_visible_devices;
  std::optional<std::string> cuda_device_order;
  /// UUIDs as CUDA counts GPUs, where that may differ from the order of `gpus` and the driver tells it.
  std::vector<GpuId> cuda_order = {};

  /// The GPU's NUMA node, where the kernel tells.
  [[nodiscard]] std::optional<int> node_of(PhysicalGpu const& gpu) const {
    auto const node = gpu_nodes.find(gpu.index);
    return node == gpu_nodes.end() ? std::nullopt : std::optional(node->second);
  }
};

/// Reads /proc and /sys; a file that is not there is a normal answer. Asks the driver for GPUs if
/// `list_gpus`: that takes some 20 ms.
[[nodiscard]] Machine detect_machine(bool list_gpus, InventoryDetail detail = InventoryDetail::gpus);

}  // namespace ddp::launcher
