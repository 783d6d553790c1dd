// The log of placements for many tensors.
#pragma once

#include <span>
#include <string_view>

#include "ddp/core/text.hpp"
#include "ddp/device/device_placement.hpp"
#include "ddp/reducer/parameter.hpp"

namespace ddp {

/// If the log is on, a line for each tensor. `whose`: "replica 1: ", or "".
inline void log_placements(std::string_view whose, std::span<Parameter const> parameters,
                           std::span<NamedTensor const> buffers) {
  if (!log_device_placement()) return;
  for (Parameter const& each : parameters) log_placement(text(whose, "parameter ", each.name), each.value);
  for (NamedTensor const& each : buffers) log_placement(text(whose, "buffer ", each.name), each.value);
}

}  // namespace ddp
