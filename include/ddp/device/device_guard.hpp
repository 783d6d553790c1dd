// The calling thread's current GPU, for a while.
#pragma once

#include <optional>

#include "ddp/core/device.hpp"
#include "ddp/core/export.hpp"

namespace DDP_EXPORT ddp {

/// Makes `device` the calling thread's current one, as cudaSetDevice() does. The destructor restores the
/// previous context if this changed it. A thread that had no context has none again: restoring opens none on
/// GPU 0. For a CPU only current_device() changes. Throws Error(not_found) for a device that is not there.
class [[nodiscard]] DeviceGuard {
 public:
  explicit DeviceGuard(Device device);  ///< Makes `device` current for this thread. Throws Error(device).
  ~DeviceGuard();
  DeviceGuard(DeviceGuard const&) = delete;
  DeviceGuard& operator=(DeviceGuard const&) = delete;

 private:
  std::optional<void*> before_;          // the context; null: none
  std::optional<Device> chosen_before_;  // by the thread
};

/// Makes `device` the calling thread's current one for good. For a CPU only current_device() changes. Throws
/// Error(not_found) for a device that is not there.
void set_device(Device device);

}  // namespace ddp
