#include "ddp/libtorch/sync_batch_norm.hpp"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>
#include <torch/nn/functional/batchnorm.h>

#include <optional>
#include <string>
#include <utility>

#include "ddp/core/text.hpp"
#include "libtorch/batch_norm/batch_statistics.hpp"
#include "libtorch/batch_norm/statistics_exchange.hpp"

namespace ddp::libtorch {
namespace {

namespace autograd = torch::autograd;

// The exchange, as autograd keeps it.
struct SharedExchange final : torch::CustomClassHolder {
  SharedExchange(std::shared_ptr<StatisticsExchange> from, std::string name)
      : exchange(std::move(from)), norm(std::move(name)) {}
  std::shared_ptr<StatisticsExchange> exchange;
  std::string norm;
};

std::optional<at::Tensor> if_defined(at::Tensor const& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

struct Normalise final : autograd::Function<Normalise> {
  static at::Tensor forward(autograd::AutogradContext* context, at::Tensor const& any_input,
                            std::optional<at::Tensor> const& weight, std::optional<at::Tensor> const& bias,
                            std::shared_ptr<StatisticsExchange> const& exchange, std::string const& norm,
                            RunningStatistics const& running, double eps) {
    at::Tensor const input = any_input.contiguous(any_input.suggest_memory_format());
    at::Tensor const rows = exchange->all_gather(local_statistics(input, eps), norm);
    BatchStatistics const statistics = statistics_of_all(input, rows, eps, running);
    at::Tensor const scale = weight.value_or(at::Tensor());
    context->save_for_backward({input, scale, statistics.mean, statistics.invstd, statistics.counts});
    context->saved_data["exchange"] =
        at::IValue::make_capsule(c10::make_intrusive<SharedExchange>(exchange, norm));
    return normalised(input, statistics, scale, bias.value_or(at::Tensor()), eps);
  }

  static autograd::variable_list backward(autograd::AutogradContext* context,
                                          autograd::variable_list const& gradients) {
    if (at::GradMode::is_enabled()) {
      throw Error(ErrorCode::unsupported,
                  "SyncBatchNorm: the gradient has no graph of its own, and backward() or "
                  "torch::autograd::grad() was called with create_graph. Use torch::nn::BatchNorm in modules "
                  "whose gradients are differentiated");
    }
    autograd::variable_list const saved = context->get_saved_variables();
    at::Tensor const& input = saved[0];
    at::Tensor const& weight = saved[1];
    BatchStatistics const statistics{saved[2], saved[3], saved[4]};
    at::Tensor const gradient = gradients[0].contiguous(input.suggest_memory_format());
    GradientSums const sums = gradient_sums(gradient, input, statistics, weight);
    autograd::variable_list result(7);
    result[1] = sums.weight;
    result[2] = sums.bias;
    if (!context->needs_input_grad(0)) return result;
    at::Tensor const of_all = at::cat({sums.of_gradient, sums.of_gradient_and_xmu});
    auto const kept = context->saved_data["exchange"].toCapsule();
    auto const& shared = static_cast<SharedExchange const&>(*kept);
    shared.exchange->all_reduce(of_all, shared.norm);
    auto const halves = of_all.chunk(2);
    result[0] = input_gradient(gradient, input, statistics, weight, halves[0], halves[1]);
    return result;
  }
};

}  // namespace

SyncBatchNormImpl::SyncBatchNormImpl(World const& world, torch::nn::BatchNormOptions const& like)
    : NormImplBase(like), exchange_(StatisticsExchange::of(world)) {}

at::Tensor SyncBatchNormImpl::forward(at::Tensor const& input) {
  _check_input_dim(input);
  double momentum = options.momentum().value_or(0);
  if (is_training() && num_batches_tracked.defined()) {
    num_batches_tracked.add_(1);
    if (!options.momentum()) momentum = 1 / num_batches_tracked.item<double>();
  }
  if (is_training() && exchange_->size() > 1) {
    return Normalise::apply(input, if_defined(weight), if_defined(bias), exchange_, called(),
                            RunningStatistics{running_mean, running_var, momentum}, options.eps());
  }
  return torch::nn::functional::batch_norm(input, running_mean, running_var,
                                           torch::nn::functional::BatchNormFuncOptions()
                                               .weight(weight)
                                               .bias(bias)
                                               .training(is_training() || !running_mean.defined())
                                               .momentum(momentum)
                                               .eps(options.eps()));
}

std::string SyncBatchNormImpl::called() const {
  return path_.empty() ? text("a SyncBatchNorm of ", options.num_features(), " channels")
                       : text("SyncBatchNorm \"", path_, '"');
}

void SyncBatchNormImpl::_check_input_dim(at::Tensor const& input) {
  require(input.dim() >= 2 && input.size(1) == options.num_features() && input.size(1) > 0, [&] {
    return text("SyncBatchNorm: expected an input [N, ", options.num_features(), ", …], found ",
                c10::str(input.sizes()));
  });
  require(input.is_floating_point(), [&] {
    return text("SyncBatchNorm: expected an input of floating point, found ",
                c10::toString(input.scalar_type()));
  });
  if (is_training()) exchange_->require_on_device(input);
}

void SyncBatchNormImpl::pretty_print(std::ostream& stream) const {
  stream << std::boolalpha << "ddp::libtorch::SyncBatchNorm(" << options.num_features()
         << ", eps=" << options.eps() << ", momentum=";
  if (options.momentum()) {
    stream << *options.momentum();
  } else {
    stream << "None";
  }
  stream << ", affine=" << options.affine() << ", track_running_stats=" << options.track_running_stats()
         << ')';
}

}  // namespace ddp::libtorch
