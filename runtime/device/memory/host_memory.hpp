// The memory of this machine, or of this container.
#pragma once

#include "ddp/device/logical_device.hpp"

namespace ddp {

/// MemAvailable and MemTotal of proc(5), and the limit of this control group if it has one: allocating more
/// would not fail, but the kernel would kill the process that used it. SIZE_MAX where neither tells.
[[nodiscard]] MemoryInfo host_memory();

}  // namespace ddp
