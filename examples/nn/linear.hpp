// A fully connected layer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "ddp/core/tensor.hpp"
#include "nn/random.hpp"
#include "nn/weight.hpp"

namespace nn {

/// y[n,out] = x[n,in] · weight[out,in]ᵀ + bias[out], for f32 and f64.
class Linear {
 public:
  /// All values are zero until initialize(). `name` is the prefix of the weights' names.
  Linear(std::string const& name, std::size_t in, std::size_t out, ddp::DType dtype,
         Context const& context = {});

  /// Weights uniform in ±sqrt(6 / in), which keeps the variance of a ReLU network's activations from layer to
  /// layer (He et al., "Delving deep into rectifiers", 2015, eq. 10); biases zero. The same on any device.
  void initialize(Random const& random);

  void forward(ddp::TensorView const& x, ddp::TensorView const& y) const;
  /// Adds the gradients of weight and bias, given dy[n,out] and the x of forward().
  void backward_weights(ddp::TensorView const& x, ddp::TensorView const& dy);
  /// dx[n,in] = dy · weight.
  void backward_input(ddp::TensorView const& dy, ddp::TensorView const& dx) const;

  [[nodiscard]] std::size_t in() const noexcept { return weight.value().shape[1]; }
  [[nodiscard]] std::size_t out() const noexcept { return weight.value().shape[0]; }

  Weight weight;  ///< [out,in]
  Weight bias;    ///< [out]
};

// The same three functions for each kind of device.
namespace cpu {
void linear_forward(ddp::TensorView const& x, ddp::TensorView const& weight, ddp::TensorView const& bias,
                    ddp::TensorView const& y);
void linear_backward_weights(ddp::TensorView const& x, ddp::TensorView const& dy,
                             ddp::TensorView const& weight_gradient, ddp::TensorView const& bias_gradient);
void linear_backward_input(ddp::TensorView const& dy, ddp::TensorView const& weight,
                           ddp::TensorView const& dx);
}  // namespace cpu
namespace cuda {
void linear_forward(Context const& context, ddp::TensorView const& x, ddp::TensorView const& weight,
                    ddp::TensorView const& bias, ddp::TensorView const& y);
void linear_backward_weights(Context const& context, ddp::TensorView const& x, ddp::TensorView const& dy,
                             ddp::TensorView const& weight_gradient, ddp::TensorView const& bias_gradient);
void linear_backward_input(Context const& context, ddp::TensorView const& dy, ddp::TensorView const& weight,
                           ddp::TensorView const& dx);
}  // namespace cuda

}  // namespace nn
