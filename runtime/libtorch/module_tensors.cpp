#include "libtorch/module_tensors.hpp"

#include <torch/nn/module.h>

#include <unordered_set>
#include <utility>

namespace ddp::libtorch {
namespace {

class Collector {
 public:
  void parameters_of(torch::nn::Module const& module) {
    for (auto const& parameter : module.named_parameters()) {
      if (!is_new(parameter.value())) continue;
      auto& list = parameter.value().requires_grad() ? tensors_.trained : tensors_.frozen;
      list.push_back({parameter.key(), parameter.value()});
    }
  }
  void buffers_of(torch::nn::Module const& module, std::string const& prefix) {
    ModuleBuffers found{&module, {}};
    for (auto const& buffer : module.named_buffers(/*recurse=*/false)) {
      if (is_new(buffer.value())) found.buffers.push_back({prefix + buffer.key(), buffer.value()});
    }
    if (!found.buffers.empty()) tensors_.buffers.push_back(std::move(found));
  }
  ModuleTensors take() { return std::move(tensors_); }

 private:
  bool is_new(at::Tensor const& tensor) {
    return tensor.defined() && seen_.insert(tensor.unsafeGetTensorImpl()).second;
  }
  std::unordered_set<c10::TensorImpl const*> seen_;
  ModuleTensors tensors_;
};

}  // namespace

ModuleTensors tensors_of(torch::nn::Module const& module) {
  Collector collector;
  collector.parameters_of(module);
  collector.buffers_of(module, "");
  // Itself apart: among its named_modules() it is only where a shared_ptr owns it.
  for (auto const& part : module.named_modules("", /*include_self=*/false)) {
    collector.buffers_of(*part.value(), part.key() + ".");
  }
  return collector.take();
}

std::shared_ptr<torch::nn::Module const> share(torch::nn::Module& module) {
  if (auto owner = module.weak_from_this().lock()) return owner;
  return {std::shared_ptr<void>(), &module};
}

}  // namespace ddp::libtorch
