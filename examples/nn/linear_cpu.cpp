#include <algorithm>

#include "nn/floating.hpp"
#include "nn/gemm_cpu.hpp"
#include "nn/linear.hpp"

namespace nn::cpu {
namespace {

template <class T>
Matrix<T const> input(ddp::TensorView const& view) {
  return row_major<T const>(view.as<T>().data(), view.shape[0], view.shape[1]);
}

template <class T>
Matrix<T> output(ddp::TensorView const& view) {
  return row_major<T>(view.as<T>().data(), view.shape[0], view.shape[1]);
}

}  // namespace

void linear_forward(ddp::TensorView const& x, ddp::TensorView const& weight, ddp::TensorView const& bias,
                    ddp::TensorView const& y) {
  dispatch_floating(x.dtype, [&](auto type) {
    using T = decltype(type);
    auto const offsets = bias.as<T>();
    auto const result = output<T>(y);
    for (std::size_t n = 0; n < result.rows; ++n) {
      std::copy(offsets.begin(), offsets.end(), result.data + n * result.columns);
    }
    gemm<T>(input<T>(x), input<T>(weight).transposed(), result, Into::add);
  });
}

void linear_backward_weights(ddp::TensorView const& x, ddp::TensorView const& dy,
                             ddp::TensorView const& weight_gradient, ddp::TensorView const& bias_gradient) {
  dispatch_floating(x.dtype, [&](auto type) {
    using T = decltype(type);
    auto const slopes = input<T>(dy);
    gemm<T>(slopes.transposed(), input<T>(x), output<T>(weight_gradient), Into::add);
    auto const sums = bias_gradient.as<T>();
    for (std::size_t n = 0; n < slopes.rows; ++n) {
      T const* const row = slopes.data + n * slopes.columns;
      for (std::size_t j = 0; j < sums.size(); ++j) sums[j] += row[j];
    }
  });
}

void linear_backward_input(ddp::TensorView const& dy, ddp::TensorView const& weight,
                           ddp::TensorView const& dx) {
  dispatch_floating(dy.dtype, [&](auto type) {
    using T = decltype(type);
    gemm<T>(input<T>(dy), input<T>(weight), output<T>(dx), Into::overwrite);
  });
}

}  // namespace nn::cpu
