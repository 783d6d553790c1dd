#include "device/registry/nvml.hpp"

#include <dlfcn.h>

#include "core/system/thread_without_signals.hpp"
#include "ddp/core/error.hpp"
#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"

namespace ddp::nvml {
Library::Library(char const* file) : handle_(dlopen(file, RTLD_NOW | RTLD_LOCAL), &dlclose) {
  if (!handle_) {
    char const* const why = dlerror();
    throw Error(ErrorCode::not_found,
                text("cannot load NVML, the driver's library: ", why != nullptr ? why : file));
  }
  auto const find = [&]<class Function>(char const* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(handle_.get(), name));
  };
  auto const get = [&](char const* name, auto& function) {
    find(name, function);
    if (function == nullptr) {
      throw Error(ErrorCode::unsupported,
                  text(file, " has no function ", name, ": expected NVML of driver 390 or newer"));
    }
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
  find("nvmlDeviceGetMaxMigDeviceCount", functions_.max_mig_devices);
  find("nvmlDeviceGetMigDeviceHandleByIndex", functions_.mig_device_by_index);
  find("nvmlDeviceGetComputeRunningProcesses_v2", functions_.compute_processes);
  find("nvmlDeviceGetP2PStatus", functions_.p2p_status);
  // The second version looks into libcuda.so.1; the first makes up a number where that is missing.
  find("nvmlSystemGetCudaDriverVersion_v2", functions_.cuda_version);

  // NVML of driver 580 starts a thread, which stays. If that one took signals, a program could not block
  // them: SIGTERM would kill ddp-launch, which is to pass it on.
  SignalsBlocked const during;
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
