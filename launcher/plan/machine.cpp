#include "launcher/plan/machine.hpp"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include "core/system/allowed_cpus.hpp"
#include "ddp/core/text.hpp"
#include "device/registry/cuda_device_order.hpp"
#include "launcher/plan/first_line.hpp"
#include "launcher/process/environment.hpp"

namespace ddp::launcher {

std::optional<int> cpu_quota(std::string const& cpu_max) {
  Classic<std::istringstream> in(cpu_max);
  double quota = 0.0;
  double period = 0.0;
  if (!(in >> quota >> period) || quota <= 0.0 || period <= 0.0) return std::nullopt;
  return std::max(1, static_cast<int>(std::ceil(std::min(quota / period, 1e6))));
}

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
  if (auto const quota = cpu_quota(first_line_of_file("/sys/fs/cgroup/cpu.max"))) {
    machine.allowed_cores = std::min(machine.allowed_cores, *quota);
    machine.physical_cores = std::min(machine.physical_cores, *quota);
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
      auto const node = node_of_device(gpu.pci_bus_id);
      if (!node) continue;
      machine.gpu_nodes[gpu.uuid] = *node;
      for (MigInstance const& instance : gpu.mig) machine.gpu_nodes[instance.uuid] = *node;
    }
  }
  return machine;
}

}  // namespace ddp::launcher
