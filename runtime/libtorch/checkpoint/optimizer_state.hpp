// What an optimizer of PyTorch remembers of its parameters, by name.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <string>

namespace torch::optim {
class Optimizer;
}

namespace ddp::libtorch {

/// A tensor; or a scalar that has the value of a number, which `set` changes.
struct StatePart {
  std::string name;
  at::Tensor values;
  std::function<void(at::Tensor const& value)> set{};
  /// Where the optimizer has it, as long as it does; undefined for what only `set` can change.
  at::Tensor memory{};
};

/// Called with each part of the state, in an order that is equal on every rank.
using StateVisitor = std::function<void(StatePart const& part)>;

/// The names of parameters, by their tensors.
using ParameterNames = std::map<c10::TensorImpl const*, std::string>;

/// The name of a part of what is called `name`, or of the only one if that is empty.
[[nodiscard]] std::string inside(std::string const& name, std::string const& part);

/// Gives parameters without a state the one with which the optimizer would begin. Throws Error(unsupported),
/// Error(invalid_argument) as Checkpoint says.
void make_state(torch::optim::Optimizer& optimizer, ParameterNames const& names);

/// Visits the state of all parameters; each must have one.
void visit_state(torch::optim::Optimizer& optimizer, ParameterNames const& names,
                 StateVisitor const& visitor);

}  // namespace ddp::libtorch
