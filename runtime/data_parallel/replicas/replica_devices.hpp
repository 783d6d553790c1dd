// Checks of the devices that replicas are to be on, and of the module.
#pragma once

#include <span>

#include "ddp/core/device.hpp"
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

}  // namespace ddp
