#include "ddp/device/inventory.hpp"

#include <cstdio>

#include "ddp/core/error.hpp"
#include "ddp/core/text.hpp"
#include "device/info/library_version.hpp"
#include "device/registry/nvml.hpp"

namespace ddp {
namespace {

using nvml::Result;

template <class Query>
std::string text_of(nvml::Library const& library, char const* what, Query query) {
  std::array<char, nvml::kTextSize> buffer{};
  Result const result = query(buffer.data(), nvml::kTextSize);
  if (result != Result::success) {
    throw Error(ErrorCode::unsupported, text("no ", what, ": ", library.describe(result)));
  }
  buffer.back() = '\0';
  return buffer.data();
}

GpuId uuid_of(nvml::Library const& library, nvml::Device device) {
  return {
      text_of(library, "UUID", [&](char* out, unsigned size) { return library->uuid(device, out, size); })};
}

std::optional<MemoryInfo> memory_of(nvml::Library const& library, nvml::Device device) {
  nvml::Memory memory{};
  if (library->memory_info(device, &memory) != Result::success || memory.total == 0) return std::nullopt;
  return MemoryInfo{Bytes{memory.free}, Bytes{memory.total}};
}

std::string bus_id_of(nvml::Library const& library, nvml::Device device) {
  nvml::PciInfo pci{};
  if (library->pci_info(device, &pci) != Result::success) return {};
  std::array<char, 32> spelled{};
  std::snprintf(spelled.data(), spelled.size(), "%04x:%02x:%02x.0", pci.domain, pci.bus, pci.device);
  return spelled.data();
}

std::vector<pid_t> compute_processes_of(nvml::Library const& library, nvml::Device device) {
  if (library->compute_processes == nullptr) return {};
  std::vector<nvml::ProcessInfo> processes(32);
  constexpr int kAttempts = 4;  // more may start between one call and the next
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    auto count = static_cast<unsigned>(processes.size());
    Result const result = library->compute_processes(device, &count, processes.data());
    if (result == Result::insufficient_size) {
      processes.resize(2 * std::max<std::size_t>(count, processes.size()));
      continue;
    }
    if (result != Result::success) return {};
    std::vector<pid_t> pids;
    for (unsigned i = 0; i < count; ++i) pids.push_back(static_cast<pid_t>(processes[i].pid));
    return pids;
  }
  return {};
}

void add_mig_instances(nvml::Library const& library, nvml::Device device, PhysicalGpu& gpu) {
  unsigned most = 0;
  if (library->max_mig_devices == nullptr || library->mig_device_by_index == nullptr) return;
  if (library->max_mig_devices(device, &most) != Result::success) return;
  gpu.mig_mode = most > 0;  // 0 where the mode is off, and where the GPU has none
  for (unsigned i = 0; i < most; ++i) {
    nvml::Device instance = nullptr;
    if (library->mig_device_by_index(device, i, &instance) != Result::success) continue;  // a free place
    gpu.mig.push_back({uuid_of(library, instance), memory_of(library, instance)});
  }
}

PhysicalGpu read_gpu(nvml::Library const& library, nvml::Device device) {
  PhysicalGpu gpu;
  gpu.uuid = uuid_of(library, device);
  gpu.name =
      text_of(library, "name", [&](char* out, unsigned size) { return library->name(device, out, size); });
  gpu.pci_bus_id = bus_id_of(library, device);
  gpu.memory = memory_of(library, device);
  if (library->compute_capability(device, &gpu.compute_major, &gpu.compute_minor) != Result::success) {
    gpu.compute_major = gpu.compute_minor = 0;
  }
  gpu.compute_processes = compute_processes_of(library, device);
  add_mig_instances(library, device, gpu);
  return gpu;
}

std::string cuda_version_of(nvml::Library const& library) {
  int version = 0;
  if (library->cuda_version == nullptr || library->cuda_version(&version) != Result::success) return {};
  return cuda_version_text(version);
}

/// Direct means that reading and writing both work, which NCCL requires for copies between GPUs.
PeerAccess peer_access(nvml::Library const& library, nvml::Device from, nvml::Device to) {
  if (from == to) return PeerAccess::itself;
  if (library->p2p_status == nullptr) return PeerAccess::unknown;
  using Capability = nvml::P2pCapability;
  for (Capability const capability : {Capability::read, Capability::write}) {
    unsigned status = nvml::kP2pUnknown;
    Result const result = library->p2p_status(from, to, capability, &status);
    if (result != Result::success || status == nvml::kP2pUnknown) return PeerAccess::unknown;
    if (status != nvml::kP2pOk) return PeerAccess::none;
  }
  unsigned linked = nvml::kP2pUnknown;
  Result const result = library->p2p_status(from, to, Capability::nvlink, &linked);
  return result == Result::success && linked == nvml::kP2pOk ? PeerAccess::nvlink : PeerAccess::direct;
}

void read_peers(nvml::Library const& library, std::vector<nvml::Device> const& gpus, Inventory& inventory) {
  for (nvml::Device const from : gpus) {
    auto& row = inventory.peers.emplace_back();
    for (nvml::Device const to : gpus) row.push_back(peer_access(library, from, to));
  }
}

void read_gpus(nvml::Library const& library, InventoryDetail detail, Inventory& inventory) {
  inventory.driver_version = text_of(library, "driver version", [&](char* out, unsigned size) {
    return library->driver_version(out, size);
  });
  std::vector<nvml::Device> listed;
  unsigned count = 0;
  Result const counted = library->device_count(&count);
  if (counted != Result::success) {
    throw Error(ErrorCode::unsupported, "NVML does not count GPUs: " + library.describe(counted));
  }
  for (unsigned i = 0; i < count; ++i) {
    nvml::Device device = nullptr;
    Result const result = library->device_by_index(i, &device);
    if (result == Result::no_permission) continue;  // the container or the batch system keeps it for others
    try {
      if (result != Result::success) throw Error(ErrorCode::unsupported, library.describe(result));
      PhysicalGpu gpu = read_gpu(library, device);
      gpu.index = PhysicalIndex{static_cast<int>(inventory.gpus.size())};
      inventory.gpus.push_back(std::move(gpu));
      listed.push_back(device);
    } catch (Error const& error) {
      if (!inventory.problem.empty()) inventory.problem += "; ";
      inventory.problem += text("GPU ", i, " of the driver cannot be asked: ", error.what());
    }
  }
  if (detail != InventoryDetail::gpus) inventory.cuda_version = cuda_version_of(library);
  if (detail == InventoryDetail::peers) read_peers(library, listed, inventory);
}

}  // namespace

std::optional<FoundGpu> find_gpu(std::span<PhysicalGpu const> gpus, GpuId const& uuid) {
  for (PhysicalGpu const& gpu : gpus) {
    if (gpu.uuid == uuid) return FoundGpu{&gpu};
    for (MigInstance const& instance : gpu.mig) {
      if (instance.uuid == uuid) return FoundGpu{&gpu, &instance};
    }
  }
  return std::nullopt;
}

Inventory read_inventory(char const* library, InventoryDetail detail) {
  Inventory inventory;
  try {
    read_gpus(nvml::Library(library), detail, inventory);
  } catch (Error const& error) {
    inventory.problem = error.what();
  }
  return inventory;
}

}  // namespace ddp
