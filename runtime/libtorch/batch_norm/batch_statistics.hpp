// The arithmetic of batch normalisation whose samples lie on several ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace ddp::libtorch {

// In the following an input is [N, C, …], dense, perhaps channels-last, with N from 0. Statistics are double
// for an input of double, otherwise float. On a GPU PyTorch's own kernels are called, and the host waits for
// nothing.

/// Values per channel.
[[nodiscard]] std::int64_t values_per_channel(at::Tensor const& input);

/// What a rank sends about its input: a row [2C+1] for statistics_of_all().
[[nodiscard]] at::Tensor local_statistics(at::Tensor const& input, double eps);

/// The running mean and variance, and the weight of new values in them. Undefined tensors: there are none.
struct RunningStatistics {
  at::Tensor mean;
  at::Tensor variance;
  double momentum = 0;
};

/// The statistics of the values of all ranks.
struct BatchStatistics {
  at::Tensor mean;    ///< [C]
  at::Tensor invstd;  ///< [C]: 1/sqrt(variance + eps), of the biased variance
  at::Tensor counts;  ///< [ranks]: values per channel of each
};
/// `rows` are those of all ranks, [ranks, 2C+1]. Running statistics get the unbiased variance; if there are
/// fewer than two values in all, they stay as they are.
[[nodiscard]] BatchStatistics statistics_of_all(at::Tensor const& input, at::Tensor const& rows, double eps,
                                                RunningStatistics const& running);

/// (input - mean) · invstd · weight + bias, in the input's form. Undefined weight and bias: 1 and 0.
[[nodiscard]] at::Tensor normalised(at::Tensor const& input, BatchStatistics const& statistics,
                                    at::Tensor const& weight, at::Tensor const& bias, double eps);

/// Sums over this rank's values.
struct GradientSums {
  at::Tensor of_gradient;          ///< [C]: Σ dy
  at::Tensor of_gradient_and_xmu;  ///< [C]: Σ dy · (x - mean)
  at::Tensor weight;               ///< the weight's gradient; undefined without a weight
  at::Tensor bias;                 ///< the bias's, likewise
};
[[nodiscard]] GradientSums gradient_sums(at::Tensor const& gradient, at::Tensor const& input,
                                         BatchStatistics const& statistics, at::Tensor const& weight);

/// The input's gradient; the sums are those of all ranks.
[[nodiscard]] at::Tensor input_gradient(at::Tensor const& gradient, at::Tensor const& input,
                                        BatchStatistics const& statistics, at::Tensor const& weight,
                                        at::Tensor const& sum, at::Tensor const& sum_xmu);

}  // namespace ddp::libtorch
