// Functions of CUDA's driver that its runtime library does not have.
#pragma once

#include <cuda.h>

#include <string_view>

#include "device/cuda/check.hpp"

namespace ddp::cuda {

/// The address of the driver's function `name`, which CUDA has since version `since`. `what` needs it:
/// "making a stream wait for the host". Throws Error(unsupported) if the driver has no such function.
[[nodiscard]] void* find_driver_function(char const* name, std::string_view what, std::string_view since);

/// The same with its type: driver_function<decltype(cuCtxCreate)>("cuCtxCreate", …).
template <class Function>
[[nodiscard]] Function* driver_function(char const* name, std::string_view what, std::string_view since) {
  return reinterpret_cast<Function*>(find_driver_function(name, what, since));
}

/// As check(): the driver and the runtime library number their errors alike.
inline void check_driver(CUresult result, std::string_view doing) {
  check(static_cast<cudaError_t>(result), doing);
}

}  // namespace ddp::cuda
