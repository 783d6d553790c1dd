#include "device/registry/nvml.hpp"

#include <dlfcn.h>

#include "ddp/core/error.hpp"
#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"

namespace ddp::nvml {
namespace {

template <class Function>
void find(void* library, char const* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
}

template <class Function>
void find_required(void* library, char const* file, char const* name, Function& function) {
  find(library, name, function);
  if (function == nullptr) {
    throw Error(ErrorCode::unsupported,
                text(file, " has no function ", name, ": expected NVML of driver 390 or newer"));
  }
}

}  // namespace

void Library::Unload::operator()(void* handle) const noexcept { dlclose(handle); }

Library::Library(char const* file) : handle_(dlopen(file, RTLD_NOW | RTLD_LOCAL)) {
  if (!handle_) {
    char const* const why = dlerror();
    throw Error(ErrorCode::not_found,
                text("cannot load NVML, the driver's library: ", why != nullptr ? why : file));
  }
  auto const get = [&](char const* name, auto& function) {
    find_required(handle_.get(), file, name, function);
  };
  get("nvmlInit_v2", functions_.init);
  get("nvmlShutdown", functions_.shutdown);
  get("nvmlErrorString", functions_.error_string);
  get("nvmlSystemGetDriverVersion", functions_.driver_version);
  get("nvmlDeviceGetCount_v2", functions_.device_count);
  get("nvmlDeviceGetHandleByIndex_v2", functions_.device_by_index);
  get("nvmlDeviceGetUUID", functions_.uuid);
  get("nvmlDeviceGetName", functions_.name);
  get("nvmlDeviceGetPciInfo_v3", functions_.pci_info);
  get("nvmlDeviceGetMemoryInfo", functions_.memory_info);
  get("nvmlDeviceGetCudaComputeCapability", functions_.compute_capability);
  find(handle_.get(), "nvmlDeviceGetMaxMigDeviceCount", functions_.max_mig_devices);
  find(handle_.get(), "nvmlDeviceGetMigDeviceHandleByIndex", functions_.mig_device_by_index);
  find(handle_.get(), "nvmlDeviceGetComputeRunningProcesses_v2", functions_.compute_processes);
  find(handle_.get(), "nvmlDeviceGetP2PStatus", functions_.p2p_status);
  // The second version looks into libcuda.so.1; the first makes up a number where that is missing.
  find(handle_.get(), "nvmlSystemGetCudaDriverVersion_v2", functions_.cuda_version);

  Result const result = functions_.init();
  if (result != Result::success) {
    throw Error(ErrorCode::unsupported,
                text("NVML, the driver's library, does not start: ", describe(result)));
  }
}

Library::~Library() {
  Result const result = functions_.shutdown();
  if (result != Result::success) log(LogLevel::warning, "NVML does not shut down: " + describe(result));
}

std::string Library::describe(Result result) const {
  char const* const words = functions_.error_string(result);
  return text(words != nullptr ? words : "error", " (", static_cast<int>(result), ")");
}

}  // namespace ddp::nvml
