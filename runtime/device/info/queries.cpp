#include "ddp/device/queries.hpp"

#include <dlfcn.h>
#include <link.h>

#include <atomic>
#include <cstddef>

#include "ddp/core/text.hpp"
#include "ddp/device/host_threads.hpp"
#include "ddp/device/inventory.hpp"
#include "device/cuda/backend.hpp"
#include "device/info/library_version.hpp"

namespace ddp {
namespace {

// The version of the library that this process has, or of one that is loaded to be asked. Even NCCL may not
// be loaded yet: the linker leaves it out of a program without a communicator.
std::string version_of(VersionedLibrary const& library, bool may_be_loaded) {
  void* function = dlsym(RTLD_DEFAULT, library.function);
  if (function == nullptr && may_be_loaded) function = load_function(library.files, library.function).address;
  return function == nullptr ? std::string() : library.version(function);
}

// How many libraries this process has loaded until now, at least 1.
unsigned long long loaded_so_far() noexcept {
  unsigned long long count = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* first, std::size_t, void* answer) {
        *static_cast<unsigned long long*>(answer) = first->dlpi_adds;
        return 1;
      },
      &count);
  return count;
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
  if (here.visible) {
    properties = cuda::device_properties(*here.visible);
  } else {
    properties.memory = memory_info(device).total;
    properties.multiprocessors = allowed_cpus();
  }
  properties.name = here.name;
  properties.uuid = here.uuid;
  properties.pci_bus_id = here.pci_bus_id;
  return properties;
}

bool cuda_is_initialized() noexcept {
  // Asked for each tensor, and a library that is not loaded is looked for in all folders.
  static std::atomic<unsigned long long> not_among{0};
  unsigned long long const loaded = loaded_so_far();
  if (not_among.load(std::memory_order_relaxed) == loaded) return false;
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) {  // so nothing has started CUDA
    not_among.store(loaded, std::memory_order_relaxed);
    return false;
  }
  // Before cuInit(), every other function of the driver returns CUDA_ERROR_NOT_INITIALIZED (CUDA driver API,
  // cuInit).
  auto const count_devices = reinterpret_cast<int (*)(int*)>(dlsym(library, "cuDeviceGetCount"));
  int count = 0;
  bool const initialised = count_devices != nullptr && count_devices(&count) == 0;
  dlclose(library);
  return initialised;
}

LibraryVersions library_versions() {
  Inventory const inventory = read_inventory("libnvidia-ml.so.1", InventoryDetail::cuda);
  bool const with_cuda = is_built_with_cuda();
  static std::string const cudnn = with_cuda ? version_of(kCudnn, true) : std::string();  // searched for once
  return {inventory.driver_version,
          inventory.cuda_version,
          cuda_version_text(cuda::runtime_version()),
          version_of(kNccl, with_cuda),
          cudnn,
          version_of(kMpi, false)};
}

}  // namespace ddp
