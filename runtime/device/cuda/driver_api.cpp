#include "device/cuda/driver_api.hpp"

#include <dlfcn.h>

#include "ddp/core/error.hpp"
#include "ddp/core/text.hpp"

namespace ddp::cuda {

void* find_driver_function(char const* name, std::string_view what, std::string_view since) {
  static void* const library = dlopen("libcuda.so.1", RTLD_NOW);
  void* const found = library == nullptr ? nullptr : dlsym(library, name);
  if (found == nullptr) {
    throw Error(ErrorCode::unsupported, text(what, " needs the driver's ", name,
                                             ", and this one has none: CUDA ", since, " or later is needed"));
  }
  return found;
}

}  // namespace ddp::cuda
