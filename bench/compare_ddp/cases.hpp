// The models that are compared, with their data. torch_cases.py has the same, to the bit.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace compare {

/// A module on its device, with its initial weights, and one batch of this rank, the same in each step.
struct Case {
  std::shared_ptr<torch::nn::Module> net;
  std::function<torch::Tensor()> loss;  ///< forward pass and loss
  bool autocast = false;
  double learning_rate = 0;
  std::string attention;  ///< which kernel PyTorch chooses; empty without attention
  int micro_steps = 1;    ///< of a step; gradients travel in the last
  double clip_norm = 0;   ///< of all gradients together; 0: as they are
};

/// gpt2-fp32, gpt2-amp, gpt2-bf16, gpt2-medium-amp, gpt2-clipped, gpt2-accumulated, gpt2-dropping, resnet50,
/// resnet50-channels-last, layers512, chain.
[[nodiscard]] std::vector<std::string> case_names();

/// `tiny`: sizes for a CPU. Throws std::invalid_argument for an unknown name.
[[nodiscard]] Case make_case(std::string const& name, bool tiny, int rank, torch::Device device);

/// A number from the bits of all parameters: equal for equal weights.
[[nodiscard]] std::uint64_t digest(torch::nn::Module const& net);

}  // namespace compare
