// The tensors of a module on which ranks must agree.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace ddp::libtorch {

/// A tensor by the name that PyTorch gives it: "layer1.0.conv1.weight".
struct ModuleTensor {
  std::string name;
  at::Tensor tensor;
};

/// The tensors of a module and its submodules, in PyTorch's order, each once, by its first name.
struct ModuleTensors {
  std::vector<ModuleTensor> trained;  ///< parameters that require gradients
  std::vector<ModuleTensor> frozen;   ///< the other parameters
  /// By module, without its submodules: if one has changed, all count as changed.
  std::vector<std::vector<ModuleTensor>> buffers;
};
[[nodiscard]] ModuleTensors tensors_of(torch::nn::Module const& module);

}  // namespace ddp::libtorch
