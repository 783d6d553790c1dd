// A tensor's elements, on either device of a rank that is a process.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "ddp/device/tensor_ops.hpp"
#include "support/ranks/multi_process.hpp"

namespace ddp::testing {

/// All of them = `element`. On a GPU by work on World::stream(); the CPU's are written at once.
inline void write(TensorView const& to, float element) {
  std::vector<float> elements(to.count(), element);
  if (to.device.kind == DeviceKind::cpu) {
    std::copy(elements.begin(), elements.end(), to.as<float>().begin());
  } else {
    copy_elements(to, view_of(std::span(elements)), world().stream());
  }
}

/// On a GPU behind what World::stream() has; waits for it.
[[nodiscard]] inline std::vector<float> read(TensorView const& from) {
  std::vector<float> elements(from.count());
  if (from.device.kind == DeviceKind::cpu) {
    std::ranges::copy(from.as<float>(), elements.begin());
  } else {
    copy_elements(view_of(std::span(elements)), from, world().stream());
    world().stream().synchronize();
  }
  return elements;
}

}  // namespace ddp::testing
