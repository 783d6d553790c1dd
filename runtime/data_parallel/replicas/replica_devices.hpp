// Checks of the devices that replicas are to be on, and of the module.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ddp/core/device.hpp"
#include "ddp/core/ids.hpp"
#include "ddp/data_parallel/module.hpp"

namespace ddp {

/// Throws Error(not_found) for one that is not there (D6); Error(invalid_argument) for one that is listed
/// twice, and for CPUs beside GPUs. The list is refused whole.
void check_devices(std::span<Device const> devices);

/// Throws Error(not_found) for an output device that is not there; Error(invalid_argument) for a GPU where
/// replicas are on CPUs.
void check_output_device(Device output, std::span<Device const> devices);

/// Throws Error(invalid_argument) naming the first parameter or buffer that is not on devices[0] (P2).
void check_module_device(Module& module, std::span<Device const> devices);

/// What P10 compares.
struct DeviceSize {
  Device device;
  Bytes memory{};
  int cores = 0;  ///< streaming multiprocessors
};

/// The warning for devices of which one has less than 75 % of another's memory or cores; nothing if none has.
[[nodiscard]] std::optional<std::string> describe_imbalance(std::span<DeviceSize const> devices);

/// Their memory limits, or all their memory; and their cores.
[[nodiscard]] std::vector<DeviceSize> device_sizes(std::span<Device const> devices);

}  // namespace ddp
