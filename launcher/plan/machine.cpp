#include "launcher/plan/machine.hpp"

#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "core/system/allowed_cpus.hpp"
#include "core/system/cgroup.hpp"
#include "device/registry/cuda_device_order.hpp"
#include "launcher/process/environment.hpp"

namespace ddp::launcher {

Machine detect_machine(bool list_gpus, InventoryDetail detail) {
  Machine machine;
  machine.host = host_name();
  auto cpus = allowed_cpu_numbers();
  if (cpus.empty()) cpus.push_back(0);
  machine.allowed_cores = static_cast<int>(cpus.size());
  machine.cpus = read_cpus(cpus);
  bool const one_core = std::ranges::all_of(
      machine.cpus, [&](Cpu const& cpu) { return cpu.core == machine.cpus.front().core; });
  machine.physical_cores = one_core ? 1 : 2;
  for (CpuQuota const& quota : cpu_quotas()) {
    int const whole = std::max(1, static_cast<int>(std::ceil(std::min(quota.cpus, 1e6))));
    machine.allowed_cores = std::min(machine.allowed_cores, whole);
    machine.physical_cores = std::min(machine.physical_cores, whole);
  }
  machine.cuda_visible_devices = environment_variable("CUDA_VISIBLE_DEVICES");
  machine.cuda_device_order = environment_variable("CUDA_DEVICE_ORDER");
  if (list_gpus) {
    Inventory inventory = read_inventory("libnvidia-ml.so.1", detail);
    bool const has_driver = access("/dev/nvidiactl", F_OK) == 0 || access("/dev/dxg", F_OK) == 0;
    if (has_driver || !inventory.gpus.empty()) machine.gpu_problem = std::move(inventory.problem);
    machine.gpus = std::move(inventory.gpus);
    machine.driver_version = std::move(inventory.driver_version);
    machine.cuda_version = std::move(inventory.cuda_version);
    machine.peers = std::move(inventory.peers);
    machine.cuda_order = cuda_order_of(machine.gpus, machine.cuda_device_order);
    for (PhysicalGpu const& gpu : machine.gpus) {
      if (auto const node = node_of_device(gpu.pci_bus_id)) machine.gpu_nodes[gpu.index] = *node;
    }
  }
  return machine;
}

}  // namespace ddp::launcher
