#include "ddp/libtorch/replicated.hpp"

#include <torch/optim/optimizer.h>

#include <string>
#include <vector>

#include "ddp/core/text.hpp"
#include "libtorch/checkpoint/optimizer_state.hpp"
#include "libtorch/tensor_view.hpp"

namespace ddp::libtorch {
namespace {

// In any order of dimensions; without gaps, since all bytes between the first and the last are copied.
NamedTensor memory_of(World const& world, at::Tensor const& tensor, std::string const& name) {
  StridedView view = view_of(tensor, world.device(), text("Replicated: ", name));
  require(tensor.is_non_overlapping_and_dense(),
          [&] { return text("Replicated: ", name, " has gaps or overlaps: give the whole tensor"); });
  return {name, view.value, std::move(view.strides)};
}

}  // namespace

Replicated::Part replicated(World const& world, torch::optim::Optimizer& optimizer) {
  ParameterNames names;
  for (auto const& group : optimizer.param_groups()) {
    for (at::Tensor const& parameter : group.params())
      names.emplace(parameter.unsafeGetTensorImpl(), text(names.size()));
  }
  make_state(optimizer, names);
  std::vector<NamedTensor> parts;
  visit_state(optimizer, names, [&](StatePart const& part) {
    if (part.memory.defined()) parts.push_back(memory_of(world, part.memory, part.name));
  });
  return parts;
}

Replicated::Part replicated(World const& world, at::Tensor const& tensor) {
  return std::vector{memory_of(world, tensor, "a tensor")};
}

}  // namespace ddp::libtorch
