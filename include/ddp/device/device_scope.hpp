// The device on which zeros() makes memory if no device is named.
#pragma once

#include <optional>
#include <string_view>

#include "ddp/core/device.hpp"
#include "ddp/core/export.hpp"
#include "ddp/core/ids.hpp"

namespace DDP_EXPORT ddp {

/// Where zeros(shape, dtype) makes memory in the calling thread: the device of its innermost DeviceScope,
/// cpu:0 outside of any.
[[nodiscard]] Device default_device() noexcept;

/// While it lives, `device` is the calling thread's default_device(); afterwards the previous one is again.
/// Scopes nest, and end in the reverse order in the thread that made them. CUDA's current device does not
/// change: see DeviceGuard.
class [[nodiscard]] DeviceScope {
 public:
  /// Throws Error(not_found) for a device that is not there, unless soft placement finds another.
  explicit DeviceScope(Device device);
  /// DeviceScope("/gpu:1"): a name as parse_device_name() reads it. If the name has a task, it must be of
  /// rank `own`, otherwise Error(invalid_argument): a process has no memory on another process's devices.
  explicit DeviceScope(std::string_view name, std::optional<Rank> own = std::nullopt);
  ~DeviceScope();
  DeviceScope(DeviceScope const&) = delete;
  DeviceScope& operator=(DeviceScope const&) = delete;

 private:
  Device before_;
};

}  // namespace ddp
