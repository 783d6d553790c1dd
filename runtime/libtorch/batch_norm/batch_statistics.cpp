#include "libtorch/batch_norm/batch_statistics.hpp"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <cmath>
#include <tuple>
#include <vector>

namespace ddp::libtorch {
namespace {

// The count of a rank without values, on a GPU. PyTorch's kernel divides by the sum of the counts so far, so
// this is not 0; added to any other count it makes no difference.
constexpr double kNoValues = 1e-30;

at::ScalarType statistics_type(at::Tensor const& input) {
  return input.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}
at::Tensor as_statistics(at::Tensor const& values) { return values.to(statistics_type(values)); }

// All but the channels.
std::vector<std::int64_t> sample_dimensions(at::Tensor const& input) {
  std::vector<std::int64_t> dimensions{0};
  for (std::int64_t d = 2; d < input.dim(); ++d) dimensions.push_back(d);
  return dimensions;
}

// [C] in a shape that broadcasts over an input.
at::Tensor along_channels(at::Tensor const& values, at::Tensor const& input) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(input.dim()), 1);
  shape[1] = values.size(0);
  return values.view(shape);
}

at::Tensor scale(BatchStatistics const& statistics, at::Tensor const& weight) {
  return weight.defined() ? statistics.invstd * as_statistics(weight) : statistics.invstd;
}

// ---- on a CPU: rows are mean, biased variance, count

at::Tensor cpu_row(at::Tensor const& input) {
  at::TensorOptions const options = input.options().dtype(statistics_type(input));
  if (input.numel() == 0) return at::zeros({2 * input.size(1) + 1}, options);
  auto const [variance, mean] =
      at::var_mean(as_statistics(input), at::OptionalIntArrayRef(sample_dimensions(input)), 0);
  return at::cat({mean, variance, at::full({1}, values_per_channel(input), options)});
}

void update(at::Tensor running, at::Tensor const& now, double momentum) {
  running.copy_(running * (1 - momentum) + now * momentum);
}

BatchStatistics cpu_statistics(at::Tensor const& rows, double eps, RunningStatistics const& running) {
  std::int64_t const channels = rows.size(1) / 2;
  at::Tensor const means = rows.slice(1, 0, channels);
  at::Tensor const variances = rows.slice(1, channels, 2 * channels);
  at::Tensor const counts = rows.select(1, 2 * channels);
  double const total = counts.sum().item<double>();
  at::Tensor const shares = counts.unsqueeze(1) / (total > 0 ? total : 1);
  at::Tensor const mean = (means * shares).sum(0);
  at::Tensor const variance = ((variances + (means - mean).square()) * shares).sum(0);
  if (running.mean.defined() && total > 1) {
    update(running.mean, mean, running.momentum);
    update(running.variance, variance * (total / (total - 1)), running.momentum);
  }
  return {mean, (variance + eps).rsqrt(), counts};
}

// ---- on a GPU: rows are mean, invstd, count

at::Tensor gpu_row(at::Tensor const& input, double eps) {
  at::TensorOptions const options = input.options().dtype(statistics_type(input));
  if (input.numel() == 0) {
    at::Tensor const mean = at::zeros({input.size(1)}, options);
    return at::cat({mean, at::full_like(mean, 1 / std::sqrt(eps)), at::full({1}, kNoValues, options)});
  }
  auto const [mean, invstd] = at::batch_norm_stats(input, eps);
  return at::cat({mean, invstd, at::full({1}, values_per_channel(input), options)});
}

BatchStatistics gpu_statistics(at::Tensor const& input, at::Tensor const& rows, double eps,
                               RunningStatistics const& running) {
  std::int64_t const channels = rows.size(1) / 2;
  at::Tensor const counts = rows.select(1, 2 * channels);
  // Copies, since the kernel takes counts in the type of the running statistics, and half would round them;
  // and divides by their sum less 1, which may be 0 if this rank has fewer than two values.
  bool const tracks = running.mean.defined();
  bool const in_place =
      tracks && running.mean.scalar_type() == rows.scalar_type() && values_per_channel(input) > 1;
  auto const copy = [&](at::Tensor const& values) {
    return tracks && !in_place ? values.to(rows.scalar_type(), /*non_blocking=*/false, /*copy=*/true)
                               : values;
  };
  at::Tensor const running_mean = copy(running.mean);
  at::Tensor const running_variance = copy(running.variance);
  auto const [mean, invstd] = at::batch_norm_gather_stats_with_counts(
      rows, rows.slice(1, 0, channels), rows.slice(1, channels, 2 * channels), running_mean, running_variance,
      running.momentum, eps, counts);
  if (tracks && !in_place) {
    at::Tensor const are_enough = counts.sum() > 1;
    running.mean.copy_(at::where(are_enough, running_mean, running.mean));
    running.variance.copy_(at::where(are_enough, running_variance, running.variance));
  }
  return {mean, invstd, counts.to(at::kInt).contiguous()};
}

}  // namespace

std::int64_t values_per_channel(at::Tensor const& input) { return input.numel() / input.size(1); }

at::Tensor local_statistics(at::Tensor const& input, double eps) {
  return input.is_cuda() ? gpu_row(input, eps) : cpu_row(input);
}

BatchStatistics statistics_of_all(at::Tensor const& input, at::Tensor const& rows, double eps,
                                  RunningStatistics const& running) {
  return input.is_cuda() ? gpu_statistics(input, rows, eps, running) : cpu_statistics(rows, eps, running);
}

at::Tensor normalised(at::Tensor const& input, BatchStatistics const& statistics, at::Tensor const& weight,
                      at::Tensor const& bias, double eps) {
  if (input.numel() == 0) return at::empty_like(input);
  if (input.is_cuda()) {
    return at::batch_norm_elemt(input, weight, bias, statistics.mean, statistics.invstd, eps);
  }
  at::Tensor output = as_statistics(input) - along_channels(statistics.mean, input);
  output.mul_(along_channels(scale(statistics, weight), input));
  if (bias.defined()) output.add_(along_channels(bias, input));
  return output.to(input.scalar_type());
}

GradientSums gradient_sums(at::Tensor const& gradient, at::Tensor const& input,
                           BatchStatistics const& statistics, at::Tensor const& weight) {
  GradientSums sums;
  if (input.numel() == 0) {
    sums.of_gradient = at::zeros_like(statistics.mean);
    sums.of_gradient_and_xmu = at::zeros_like(statistics.mean);
    if (weight.defined()) sums.weight = at::zeros_like(weight);
    if (weight.defined()) sums.bias = at::zeros_like(weight);
    return sums;
  }
  if (input.is_cuda()) {
    std::tie(sums.of_gradient, sums.of_gradient_and_xmu, sums.weight, sums.bias) =
        at::batch_norm_backward_reduce(gradient, input, statistics.mean, statistics.invstd, weight,
                                       /*input_g=*/true, weight.defined(), weight.defined());
    if (!weight.defined()) sums.weight = sums.bias = at::Tensor();  // the kernel may make them all the same
    return sums;
  }
  at::Tensor const dy = as_statistics(gradient);
  auto const dimensions = sample_dimensions(input);
  sums.of_gradient = dy.sum(dimensions);
  sums.of_gradient_and_xmu =
      ((as_statistics(input) - along_channels(statistics.mean, input)) * dy).sum(dimensions);
  if (weight.defined()) {
    sums.weight = (sums.of_gradient_and_xmu * statistics.invstd).to(weight.scalar_type());
    sums.bias = sums.of_gradient.to(weight.scalar_type());
  }
  return sums;
}

at::Tensor input_gradient(at::Tensor const& gradient, at::Tensor const& input,
                          BatchStatistics const& statistics, at::Tensor const& weight, at::Tensor const& sum,
                          at::Tensor const& sum_xmu) {
  if (input.numel() == 0) return at::empty_like(input);
  if (input.is_cuda()) {
    return at::batch_norm_backward_elemt(gradient, input, statistics.mean, statistics.invstd,
                                         weight.defined() ? as_statistics(weight) : weight, sum, sum_xmu,
                                         statistics.counts);
  }
  at::Tensor const total = statistics.counts.sum();
  at::Tensor result = as_statistics(input) - along_channels(statistics.mean, input);
  result.mul_(along_channels(sum_xmu * statistics.invstd.square() / -total, input));
  result.add_(as_statistics(gradient)).sub_(along_channels(sum / total, input));
  return result.mul_(along_channels(scale(statistics, weight), input)).to(input.scalar_type());
}

}  // namespace ddp::libtorch
