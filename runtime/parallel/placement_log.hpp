// What the log of placements says of many tensors (D12).
#pragma once

#include <string>

#include "ddp/core/text.hpp"
#include "ddp/device/device_placement.hpp"

namespace ddp {

/// A line for each, if the log is on. `what`: "parameter".
template <class Tensors>
void log_placements(std::string const& what, Tensors const& tensors) {
  if (!log_device_placement()) return;
  for (auto const& tensor : tensors) log_placement(text(what, ' ', tensor.name), tensor.value);
}

}  // namespace ddp
