// Clones of modules, checked.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "ddp/data_parallel/module.hpp"

namespace ddp {

/// The values of all parameters, then of all buffers.
[[nodiscard]] std::vector<TensorView> values_of(Module& module);

/// If the log of placements is on, a line for each parameter and buffer. `whose`: "replica 1: ", or "".
void log_placements(std::string_view whose, Module& module);

/// A clone on `device`. Throws Error(invalid_argument) where its parameters and buffers are not like the
/// module's, naming the first that is not.
[[nodiscard]] std::shared_ptr<Module> checked_clone(Module& module, Device device);

/// Enqueues copies of all values to a module of the same structure.
void copy_values(Module& from, Module& to);

}  // namespace ddp
