// Devices that are not there, and a log of what lies where.
#pragma once

#include <string_view>

#include "ddp/core/device.hpp"
#include "ddp/core/export.hpp"
#include "ddp/core/tensor.hpp"

namespace DDP_EXPORT ddp {

/// On: memory, streams, scopes, guards and Module::to() that ask for a device that is not there get another
/// one, with one warning for each such device: the CPU in place of a GPU. Off, the default: they throw
/// Error(not_found). For the whole process. Any thread.
void set_soft_placement(bool on) noexcept;
[[nodiscard]] bool soft_placement() noexcept;  ///< Whether it is on.

/// `wanted` if it is there. Otherwise with soft placement cpu:0, and a warning the first time; without it
/// throws Error(not_found) with what there is.
[[nodiscard]] Device place_device(Device wanted);

/// On: every buffer (zeros()), every parameter and buffer that DistributedDataParallel or DataParallel takes,
/// and every collective is written to stderr with its device, "[ddp] placement: buffer f32[3,4] on cuda:1".
/// Off at the start. For the whole process. Any thread.
void set_log_device_placement(bool on) noexcept;
[[nodiscard]] bool log_device_placement() noexcept;  ///< Whether it is on.

/// Writes such a line if the log is on: log_placement("parameter fc1.weight", view). Any thread.
void log_placement(std::string_view what, TensorView const& tensor);

}  // namespace ddp
