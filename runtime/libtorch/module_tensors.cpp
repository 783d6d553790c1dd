#include "libtorch/module_tensors.hpp"

#include <torch/nn/module.h>

#include <unordered_set>
#include <utility>

namespace ddp::libtorch {

ModuleTensors tensors_of(torch::nn::Module const& module) {
  ModuleTensors tensors;
  std::unordered_set<c10::TensorImpl const*> seen;
  auto const is_new = [&](at::Tensor const& tensor) {
    return tensor.defined() && seen.insert(tensor.unsafeGetTensorImpl()).second;
  };
  for (auto const& parameter : module.named_parameters()) {
    if (!is_new(parameter.value())) continue;
    auto& list = parameter.value().requires_grad() ? tensors.trained : tensors.frozen;
    list.push_back({parameter.key(), parameter.value()});
  }
  auto const add_buffers = [&](torch::nn::Module const& part, std::string const& prefix) {
    std::vector<ModuleTensor> found;
    for (auto const& buffer : part.named_buffers(/*recurse=*/false)) {
      if (is_new(buffer.value())) found.push_back({prefix + buffer.key(), buffer.value()});
    }
    if (!found.empty()) tensors.buffers.push_back(std::move(found));
  };
  add_buffers(module, "");
  // Itself apart: among its named_modules() it is only where a shared_ptr owns it.
  for (auto const& part : module.named_modules("", /*include_self=*/false)) {
    add_buffers(*part.value(), part.key() + ".");
  }
  return tensors;
}

}  // namespace ddp::libtorch
