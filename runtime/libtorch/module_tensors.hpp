// The tensors of a module on which ranks must agree.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
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

/// Buffers of one module, without those of its submodules: if one has changed, all count as changed.
struct ModuleBuffers {
  torch::nn::Module const* module = nullptr;  ///< lives as long as the module that it is a part of
  std::vector<ModuleTensor> buffers;
};

/// The tensors of a module and its submodules, in PyTorch's order, each once, by its first name.
struct ModuleTensors {
  std::vector<ModuleTensor> trained;  ///< parameters that require gradients
  std::vector<ModuleTensor> frozen;   ///< the other parameters
  std::vector<ModuleBuffers> buffers;
};
[[nodiscard]] ModuleTensors tensors_of(torch::nn::Module const& module);

/// `module` with a share in it if a shared_ptr owns it; otherwise it must outlive the result.
[[nodiscard]] std::shared_ptr<torch::nn::Module const> share(torch::nn::Module& module);

}  // namespace ddp::libtorch
