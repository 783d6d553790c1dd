// A module with a state beside its parameters.
#pragma once

#include "libtorch/models.hpp"

namespace ddp::testing {

/// With buffers of several types.
struct Normalised : torch::nn::Module {
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(6, 4));
  torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(4));
  torch::Tensor mask = register_buffer("mask", torch::ones({4}, torch::kBool));
  torch::Tensor forward(torch::Tensor const& x) { return norm(linear(x)) * mask; }
};

/// Other values on each rank and in each step.
inline torch::Tensor rows_of_this_rank(std::uint64_t step) {
  return random_rows(4, 6, 100 * step + static_cast<std::uint64_t>(world().rank().value()));
}

}  // namespace ddp::testing
