// The GPUs of this machine as the driver lists them. CUDA is not used: no context is made, and a GPU whose
// memory is full is listed too.
#pragma once

#include <sys/types.h>

#include <compare>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ddp/core/export.hpp"
#include "ddp/core/ids.hpp"

namespace DDP_EXPORT ddp {

/// The memory of a device, all processes together.
struct MemoryInfo {
  Bytes free{0};   ///< what nobody has
  Bytes total{0};  ///< of the device
};

/// Names a GPU or a MIG instance: a UUID, the same whatever is visible, and after a reboot. Compared with its
/// own kind or with text.
struct GpuId {
  std::string value = {};  ///< "GPU-8c0f…" or "MIG-41b3…", as the driver writes it; empty for a CPU
  /// Whether it is an instance's.
  [[nodiscard]] bool is_mig() const noexcept { return value.starts_with("MIG-"); }
  friend auto operator<=>(GpuId const&, GpuId const&) noexcept = default;  ///< As text.
  friend bool operator==(GpuId const&, GpuId const&) noexcept = default;   ///< As text.
  /// As text.
  friend bool operator==(GpuId const& id, std::string_view text) noexcept { return id.value == text; }
  /// The text.
  friend std::ostream& operator<<(std::ostream& out, GpuId const& id) { return out << id.value; }
};

/// A part of a GPU that CUDA addresses as a device of its own.
struct MigInstance {
  GpuId uuid;                          ///< "MIG-41b3…"
  std::optional<MemoryInfo> memory{};  ///< nullopt if the driver does not tell
};

/// The driver's number of a GPU, which does not depend on what is visible.
using PhysicalIndex = Id<struct PhysicalIndexTag>;

/// A GPU as the driver lists it.
struct PhysicalGpu {
  GpuId uuid;                          ///< "GPU-8c0f…"
  std::string name = {};               ///< "NVIDIA H200"
  std::vector<MigInstance> mig = {};   ///< its MIG instances, if it has any
  bool mig_mode = false;               ///< CUDA sees the instances and not the GPU, even if there are none
  PhysicalIndex index{0};              ///< its place in Inventory::gpus
  std::string pci_bus_id = {};         ///< "0000:06:00.0", as /sys/bus/pci/devices spells it
  int compute_major = 0;               ///< 9 of sm_90
  int compute_minor = 0;               ///< 0 of sm_90
  std::optional<MemoryInfo> memory{};  ///< nullopt where the driver does not tell
  /// Processes with a context on it. In a container they may be missing, or have the host's numbers.
  std::vector<pid_t> compute_processes = {};
};

/// A GPU of a list, or one of its MIG instances. Points into the list.
struct FoundGpu {
  PhysicalGpu const* gpu = nullptr;       ///< never nullptr
  MigInstance const* instance = nullptr;  ///< nullptr: the whole GPU
  [[nodiscard]] GpuId const& uuid() const {
    return instance != nullptr ? instance->uuid : gpu->uuid;
  }  ///< Its own.
  /// Its own: an instance has a part of its GPU's.
  [[nodiscard]] std::optional<MemoryInfo> const& memory() const {
    return instance != nullptr ? instance->memory : gpu->memory;
  }
};

/// The GPU or MIG instance of that name; nullopt if it is not among `gpus`.
[[nodiscard]] std::optional<FoundGpu> find_gpu(std::span<PhysicalGpu const> gpus, GpuId const& uuid);

/// How one GPU reaches another's memory, as the driver says.
enum class PeerAccess {
  unknown,  ///< the driver does not tell
  itself,   ///< one and the same GPU
  none,     ///< not at all: data goes through the host's memory
  direct,   ///< reads and writes it, over PCIe
  nvlink,   ///< reads and writes it, over NVLink
};

/// What there is. Plain values, true when they were read.
struct Inventory {
  /// In the order of PCI bus ids, which is CUDA's order with CUDA_DEVICE_ORDER=PCI_BUS_ID. Without that
  /// variable CUDA counts the fastest first. With GPUs of one model that is the same order; with several
  /// models an index may mean another GPU in CUDA and in list_physical_devices(). Only a UUID always means
  /// the same. GPUs that this process may not open are left out.
  std::vector<PhysicalGpu> gpus;
  std::string driver_version;  ///< "580.82.07"; empty without a driver
  /// Why GPUs may be missing from the list; empty if none is. It is normal to have no library or no driver,
  /// and then this says so.
  std::string problem;
  /// The newest CUDA that the driver runs, "13.0". Empty if it was not asked for, or if the driver does not
  /// tell: a container may lack its libcuda.so.1.
  std::string cuda_version = {};
  /// [i][j]: how gpus[i] reaches gpus[j]. Empty if it was not asked for.
  std::vector<std::vector<PeerAccess>> peers = {};
};

/// How much read_inventory() asks for.
enum class InventoryDetail {
  gpus,   ///< what starting ranks needs
  cuda,   ///< cuda_version too
  peers,  ///< that and peers too, which asks about each pair of GPUs
};

/// Asks NVML, which is loaded from `library` for the duration of the call (about 20 ms with a driver). Never
/// throws if the machine lacks something: without a driver, without a GPU, and with a library that refuses,
/// the list is empty. Any thread.
[[nodiscard]] Inventory read_inventory(char const* library = "libnvidia-ml.so.1",
                                       InventoryDetail detail = InventoryDetail::gpus);

}  // namespace ddp
