// The context that a thread works in, by the driver's API: the runtime library knows devices only.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <atomic>
#include <exception>
#include <optional>
#include <vector>

#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"
#include "ddp/device/device_guard.hpp"
#include "device/cuda/backend.hpp"
#include "device/cuda/check.hpp"
#include "device/cuda/driver_api.hpp"

namespace ddp::cuda {
namespace {

template <class Function>
Function* context_function(char const* name) {
  return driver_function<Function>(name, "the context of a GPU", "7");
}

int device_count() {
  int count = 0;
  check(cudaGetDeviceCount(&count), "counting GPUs");
  return count;
}

CUdevice driver_device(int visible) {
  static auto* const get = context_function<decltype(cuDeviceGet)>("cuDeviceGet");
  CUdevice device = 0;
  check_driver(get(&device, visible), text("looking for GPU ", visible));
  return device;
}

}  // namespace

void* current_context() noexcept {
  static auto* const get = []() -> decltype(cuCtxGetCurrent)* {
    try {
      return context_function<decltype(cuCtxGetCurrent)>("cuCtxGetCurrent");
    } catch (Error const&) {
      return nullptr;
    }
  }();
  CUcontext context = nullptr;
  return get != nullptr && get(&context) == CUDA_SUCCESS ? context : nullptr;
}

void set_current_context(void* context) {
  static auto* const set = context_function<decltype(cuCtxSetCurrent)>("cuCtxSetCurrent");
  check_driver(set(static_cast<CUcontext>(context)), "going to the context of a GPU");
}

// Contexts are kept until the process ends, as CUDA's runtime library keeps them. `kept` is never destroyed,
// since other statics may own resources of a GPU.
void* primary_context(int visible) {
  static auto& kept = *new std::vector<std::atomic<CUcontext>>(static_cast<std::size_t>(device_count()));
  auto& context = kept.at(static_cast<std::size_t>(visible));
  if (void* const found = context.load(std::memory_order_acquire)) return found;
  static auto* const retain =
      context_function<decltype(cuDevicePrimaryCtxRetain)>("cuDevicePrimaryCtxRetain");
  CUcontext opened = nullptr;
  check_driver(retain(&opened, driver_device(visible)), text("making GPU ", visible, " the current one"));
  context.store(opened, std::memory_order_release);
  return opened;
}

bool has_context(int visible) {
  static auto* const ask =
      context_function<decltype(cuDevicePrimaryCtxGetState)>("cuDevicePrimaryCtxGetState");
  unsigned int flags = 0;
  int open = 0;
  check_driver(ask(driver_device(visible), &flags, &open), text("asking for the context of GPU ", visible));
  return open != 0;
}

OwnProcess const& maker_of_contexts() {
  static OwnProcess const maker;
  return maker;
}

void end_on(Device device, std::function<void()> const& end) noexcept {
  if (!maker_of_contexts().is_this()) return;  // CUDA does not work in a forked child
  try {
    std::optional<DeviceGuard> guard;
    if (current_context() == nullptr) guard.emplace(device);
    end();
  } catch (std::exception const& error) {
    log(LogLevel::debug, error.what());
  }
}

}  // namespace ddp::cuda
