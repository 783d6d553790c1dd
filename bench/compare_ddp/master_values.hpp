// f32 values of 16-bit parameters, as a program keeps them that has a plain optimizer.
#pragma once

#include <torch/torch.h>

#include <cstddef>
#include <vector>

namespace compare {

/// What the optimizer has in the place of the parameters: those of 16 bits in f32, others themselves.
class MasterValues {
 public:
  explicit MasterValues(std::vector<torch::Tensor> const& parameters) {
    torch::NoGradGuard const no_grad;
    for (torch::Tensor const& parameter : parameters) {
      if (parameter.element_size() != 2) {
        values_.push_back(parameter);
        continue;
      }
      values_.push_back(parameter.detach().to(torch::kFloat32));
      masters_.push_back(values_.back());
      parameters_.push_back(parameter);
    }
  }
  [[nodiscard]] std::vector<torch::Tensor> const& values() const { return values_; }

  /// Before the optimizer's step: what the parameters' gradients are now.
  void take_gradients() const {
    if (parameters_.empty()) return;
    torch::NoGradGuard const no_grad;
    std::vector<torch::Tensor> from;
    std::vector<torch::Tensor> to;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      from.push_back(parameters_[i].grad());
      to.push_back(torch::empty_like(masters_[i]));
      torch::Tensor(masters_[i]).mutable_grad() = to.back();
    }
    at::_foreach_copy_(to, from);
  }
  /// After it: rounds the values into the parameters, and keeps no gradient.
  void give_values() const {
    if (parameters_.empty()) return;
    torch::NoGradGuard const no_grad;
    at::_foreach_copy_(parameters_, masters_);
    for (torch::Tensor master : masters_) master.mutable_grad().reset();
  }

 private:
  std::vector<torch::Tensor> values_;
  std::vector<torch::Tensor> parameters_;  // of 16 bits
  std::vector<torch::Tensor> masters_;     // of each
};

}  // namespace compare
