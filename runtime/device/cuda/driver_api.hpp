// Functions of CUDA's driver that its runtime library does not have.
#pragma once

#include <cuda.h>

#include <string_view>

namespace ddp::cuda {

/// Where CUDA `since` or a later one has the function `name`. `what` needs it: "making a stream wait for the
/// host". Throws Error(unsupported) if the driver, which is loaded already, has none.
[[nodiscard]] void* find_driver_function(char const* name, std::string_view what, std::string_view since);

/// The same with its type: driver_function<decltype(cuCtxCreate)>("cuCtxCreate", …).
template <class Function>
[[nodiscard]] Function* driver_function(char const* name, std::string_view what, std::string_view since) {
  return reinterpret_cast<Function*>(find_driver_function(name, what, since));
}

/// Throws Error(unsupported) or Error(device) unless `result` is success. `doing`: "making a green context".
void check_driver(CUresult result, std::string_view doing);

}  // namespace ddp::cuda
