// Modules with batch normalisation.
#pragma once

#include "libtorch/models.hpp"

namespace ddp::testing {

using libtorch::SyncBatchNorm;

inline std::size_t rank() { return world().rank().index(); }

/// The same values on every rank that calls it with the same seed; their mean is not 0.
inline torch::Tensor random(std::vector<std::int64_t> const& shape, std::uint64_t seed) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  return (torch::randn(shape, generator) * 2 + 0.5).to(libtorch::device(world()));
}

/// The parameters of `from` for a module with the same names.
inline void copy_parameters(torch::nn::Module const& from, torch::nn::Module const& to) {
  torch::NoGradGuard const no_graph;
  auto const values = from.named_parameters();
  for (auto const& parameter : to.named_parameters()) parameter.value().copy_(values[parameter.key()]);
}

/// Convolution, normalisation, and a layer behind it.
template <class Norm>
struct ConvolutionNet : torch::nn::Module {
  torch::nn::Conv2d conv;
  Norm norm;
  torch::nn::Linear head;
  explicit ConvolutionNet(Norm from)
      : conv(register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 4, 3)))),
        norm(register_module("norm", from)),
        head(register_module("head", torch::nn::Linear(4, 3))) {
    this->to(libtorch::device(world()));
  }
  torch::Tensor forward(torch::Tensor const& x) {
    return head(torch::relu(norm(conv(x.view({-1, 2, 5, 5})))).mean({2, 3}));
  }
};
using SyncNet = ConvolutionNet<SyncBatchNorm>;
using WholeNet = ConvolutionNet<torch::nn::BatchNorm2d>;

}  // namespace ddp::testing
