// What a rank can check of its parameters by itself.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "ddp/reducer/parameter.hpp"
#include "reducer/memory/gradient_memory.hpp"

namespace ddp {

/// Throws Error(invalid_argument) for an empty list, a dtype that has no gradients, memory that is not where
/// it is said to be, a gradient that is missing, of another form, or overlaps another; and, where values are
/// moved (`sharding`), for values that overlap others or a buffer. Sends nothing.
void check_parameters(std::span<Parameter const> parameters, GradientMemory::Options const& options,
                      Sharding sharding = Sharding::none, std::span<NamedTensor const> buffers = {});

/// Throws Error(invalid_argument), which begins with name(), for memory that is not there, or not where
/// `view` says (as far as CUDA knows).
void require_memory(std::function<std::string()> const& name, TensorView const& view);

/// "parameter 7 \"fc1.weight\"".
[[nodiscard]] std::string parameter_name(std::span<Parameter const> parameters, std::size_t index);

}  // namespace ddp
