#include "ddp/device/queries.hpp"

#include <dlfcn.h>

#include "ddp/core/text.hpp"
#include "ddp/device/host_threads.hpp"
#include "ddp/device/inventory.hpp"
#include "device/cuda/backend.hpp"
#include "device/info/cudnn.hpp"
#include "device/info/version_text.hpp"
#include "device/registry/driver_state.hpp"

namespace ddp {
namespace {

// A program without a communicator is linked without NCCL where the linker leaves out what nobody needs.
std::string nccl_version() {
  void* function = dlsym(RTLD_DEFAULT, "ncclGetVersion");
  if (function == nullptr && is_built_with_cuda()) {
    if (void* const library = dlopen("libnccl.so.2", RTLD_LAZY | RTLD_LOCAL); library != nullptr) {
      function = dlsym(library, "ncclGetVersion");
    }
  }
  int code = 0;
  if (function == nullptr || reinterpret_cast<int (*)(int*)>(function)(&code) != 0) return {};
  return nccl_version_text(code);
}

std::string loaded_mpi() {
  void* const function = dlsym(RTLD_DEFAULT, "MPI_Get_library_version");
  return function == nullptr ? std::string() : mpi_version_text(function);
}

}  // namespace

bool cuda_is_available() { return !logical_devices().empty(); }

int device_count(DeviceKind kind) { return static_cast<int>(list_logical_devices(kind).size()); }

std::string device_name(Device device) { return logical_device(device).name; }

ComputeCapability device_capability(Device device) {
  static_cast<void>(logical_device(device));
  require(device.kind == DeviceKind::cuda,
          [&] { return text("device_capability: expected a GPU, found ", device); });
  return device_properties(device).capability;
}

DeviceProperties device_properties(Device device) {
  LogicalDevice const& here = logical_device(device);
  DeviceProperties properties;
  if (device.kind == DeviceKind::cuda) {
    properties = cuda::device_properties(here.visible);
  } else {
    properties.memory = memory_info(device).total;
    properties.multiprocessors = allowed_cpus();
  }
  properties.name = here.name;
  properties.uuid = here.uuid;
  properties.pci_bus_id = here.pci_bus_id;
  return properties;
}

bool cuda_is_initialized() noexcept { return cuda_was_used(); }

LibraryVersions library_versions() {
  Inventory const inventory = read_inventory("libnvidia-ml.so.1", InventoryDetail::cuda);
  std::size_t const cudnn = is_built_with_cuda() ? cudnn_version().code : 0;
  return {inventory.driver_version,
          inventory.cuda_version,
          cuda_version_text(cuda::runtime_version()),
          nccl_version(),
          cudnn == 0 ? std::string() : cudnn_version_text(cudnn),
          loaded_mpi()};
}

}  // namespace ddp
