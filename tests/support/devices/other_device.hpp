// A second device of a rank that is a process: the CPU beside its GPU, or a second virtual CPU.
#pragma once

#include <optional>

#include "ddp/device/logical_device.hpp"
#include "support/ranks/multi_process.hpp"

namespace ddp::testing {

/// Before the main function makes the World, which settles it.
[[maybe_unused]] inline bool const kCpuIsCut = [] {
  set_logical_devices({.kind = DeviceKind::cpu, .limits = {std::nullopt, std::nullopt}});
  return true;
}();

[[nodiscard]] inline Device other_device() {
  bool const on_gpu = world().device().kind == DeviceKind::cuda;
  return {DeviceKind::cpu, DeviceIndex{on_gpu ? 0 : 1}};
}

}  // namespace ddp::testing
