// Copies of a module on other devices.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "ddp/core/export.hpp"
#include "ddp/data_parallel/module.hpp"

namespace DDP_EXPORT ddp {

/// The module itself, then a copy of it on each further device, with its values and hooks: what replica 0
/// writes into parameters and buffers stays. Waits until all values are there.
///
/// Throws Error(invalid_argument) for no device, a device that stands twice, and a module whose parameters or
/// buffers are not on the first device, naming the first that is not; Error(not_found) for a device that is
/// not there.
[[nodiscard]] std::vector<std::shared_ptr<Module>> replicate(std::shared_ptr<Module> module,
                                                             std::span<Device const> devices);

}  // namespace ddp
