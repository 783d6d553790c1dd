// What the log of placements says of a module.
#pragma once

#include <string_view>

#include "ddp/data_parallel/module.hpp"
#include "reducer/placement_log.hpp"

namespace ddp {

/// A line for each parameter and buffer, if the log is on; the module is asked for them only then.
inline void log_placements(std::string_view whose, Module& module) {
  if (log_device_placement()) log_placements(whose, module.parameters(), module.buffers());
}

}  // namespace ddp
