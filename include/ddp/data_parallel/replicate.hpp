// Copies of a module on other devices.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "ddp/core/export.hpp"
#include "ddp/data_parallel/module.hpp"

namespace DDP_EXPORT ddp {

/// The module itself, then a copy of it on each further device, with its values and hooks; parameters and
/// buffers that replica 0 writes are the module's own. Waits until all values are there.
///
/// Throws Error(invalid_argument) for an empty list, for a device that appears twice, and for a module whose
/// parameters or buffers are not on the first device, naming the first that is not; Error(not_found) for a
/// device that is not there.
[[nodiscard]] std::vector<std::shared_ptr<Module>> replicate(std::shared_ptr<Module> module,
                                                             std::span<Device const> devices);

}  // namespace ddp
