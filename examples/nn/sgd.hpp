// Stochastic gradient descent with momentum.
#pragma once

#include <span>
#include <vector>

#include "ddp/core/tensor.hpp"
#include "nn/weight.hpp"

namespace nn {

struct SgdOptions {
  double learning_rate = 0.1;
  double momentum = 0.9;
};

/// velocity = momentum · velocity + gradient; value -= learning_rate · velocity. (As PyTorch's SGD; Sutskever
/// et al., "On the importance of initialization and momentum", 2013, have the learning rate inside the
/// velocity.)
class Sgd {
 public:
  using Options = SgdOptions;
  /// The weights must outlive it.
  explicit Sgd(std::vector<Weight*> weights, Options options = {});

  /// Applies the gradients, and leaves them zero.
  void step();
  void set_learning_rate(double learning_rate) noexcept { options_.learning_rate = learning_rate; }

 private:
  std::vector<Weight*> weights_;
  std::vector<ddp::Tensor> velocities_;
  Options options_;
};

namespace cpu {
void sgd_step(ddp::TensorView const& value, ddp::TensorView const& gradient, ddp::TensorView const& velocity,
              SgdOptions const& options);
}  // namespace cpu
namespace cuda {
void sgd_step(Context const& context, ddp::TensorView const& value, ddp::TensorView const& gradient,
              ddp::TensorView const& velocity, SgdOptions const& options);
}  // namespace cuda

}  // namespace nn
