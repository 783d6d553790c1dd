#include "device/registry/driver_state.hpp"

#include <dlfcn.h>

namespace ddp {

bool cuda_was_used() noexcept {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return false;  // nobody can have called it
  // Before cuInit() every function of the driver but that answers CUDA_ERROR_NOT_INITIALIZED (CUDA driver
  // API, cuInit).
  auto const count_devices = reinterpret_cast<int (*)(int*)>(dlsym(library, "cuDeviceGetCount"));
  int count = 0;
  bool const initialised = count_devices != nullptr && count_devices(&count) == 0;
  dlclose(library);
  return initialised;
}

}  // namespace ddp
