// The memory of this machine, or of this container.
#pragma once

#include "ddp/device/logical_device.hpp"

namespace ddp {

/// MemAvailable and MemTotal of proc(5), and the limit of this control group if it has one: asking for more
/// would not fail, the kernel would end the process when it uses the memory. SIZE_MAX where neither tells.
[[nodiscard]] MemoryInfo host_memory();

}  // namespace ddp
