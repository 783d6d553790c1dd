// What an optimizer of PyTorch remembers of its parameters, by name.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>

namespace torch::optim {
class Optimizer;
}

namespace ddp::libtorch {

/// Called with each part of the state, in an order that is equal on every rank.
struct StateVisitor {
  std::function<void(std::string const& name, at::Tensor& tensor)> tensor;
  std::function<void(std::string const& name, std::int64_t& count)> count;
  std::function<void(std::string const& name, double number, std::function<void(double)> const& set)> number;
};

/// The names of parameters, by their tensors.
using ParameterNames = std::map<c10::TensorImpl const*, std::string>;

/// Gives parameters without a state the one with which the optimizer would begin. Throws Error(unsupported),
/// Error(invalid_argument) as Checkpoint says.
void make_state(torch::optim::Optimizer& optimizer, ParameterNames const& names);

/// Visits the state of all parameters; each must have one.
void visit_state(torch::optim::Optimizer& optimizer, ParameterNames const& names,
                 StateVisitor const& visitor);

}  // namespace ddp::libtorch
