#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <torch/optim/serialize.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <memory>
#include <tuple>
#include <utility>

#include "ddp/core/error.hpp"
#include "ddp/core/text.hpp"
#include "ddp/libtorch/optimizers.hpp"
#include "libtorch/ddp/gradient_hook.hpp"

namespace ddp::libtorch {
namespace {

namespace optim = torch::optim;

// Python's form, which torch::optim's own optimizers write too.
template <class State>
void write_tensor(torch::serialize::OutputArchive& archive, State const& tensor, char const* name) {
  if (tensor.defined()) archive.write(name, tensor);
}

void read_tensor(torch::serialize::InputArchive& archive, at::Tensor& tensor, char const* name) {
  at::Tensor found;
  if (archive.try_read(name, found)) tensor = found;
}

void require_option(bool is_valid, char const* name, double found) {
  require(is_valid, [&] { return text("an optimizer's ", name, ": it cannot be ", found); });
}

optim::AdamWOptions checked(optim::AdamWOptions options) {
  auto const [first, second] = options.betas();
  require_option(options.lr() >= 0, "lr", options.lr());
  require_option(options.eps() >= 0, "eps", options.eps());
  require_option(options.weight_decay() >= 0, "weight_decay", options.weight_decay());
  require_option(first >= 0 && first < 1, "first beta", first);
  require_option(second >= 0 && second < 1, "second beta", second);
  return options;
}

optim::SGDOptions checked(optim::SGDOptions options) {
  require_option(options.lr() >= 0, "lr", options.lr());
  require_option(options.momentum() >= 0, "momentum", options.momentum());
  require_option(options.weight_decay() >= 0, "weight_decay", options.weight_decay());
  require_option(!options.nesterov() || (options.momentum() > 0 && options.dampening() == 0),
                 "momentum with nesterov, which needs one and no dampening", options.momentum());
  return options;
}

// The parameters of one optimizer belong to one wrapped module.
at::Tensor where_to_skip(at::Tensor const& asked, std::vector<at::Tensor> const& parameters) {
  GradientHook const* const hook = parameters.empty() ? nullptr : GradientHook::of(parameters.front());
  if (hook == nullptr || !hook->uncommitted().defined()) return asked;
  return asked.defined() ? at::maximum(asked, hook->uncommitted()) : hook->uncommitted();
}

}  // namespace

// ---- all of them

std::size_t FusedOptimizer::group_of(at::Tensor const& parameter) {
  auto const find = [&] { return groups_.find(parameter.unsafeGetTensorImpl()); };
  auto found = find();
  if (found == groups_.end()) {
    for (std::size_t g = 0; g < param_groups().size(); ++g) {
      for (at::Tensor const& each : param_groups()[g].params()) groups_[each.unsafeGetTensorImpl()] = g;
    }
    found = find();
  }
  require(found != groups_.end(), [&] {
    return text("an optimizer's update(): a parameter of shape ", parameter.sizes(),
                " is none of this optimizer's; give the tensors with which it was made");
  });
  return found->second;
}

at::Tensor FusedOptimizer::step(LossClosure closure) {
  at::Tensor loss;
  if (closure) {
    at::AutoGradMode const graph(true);
    loss = closure();
  }
  std::vector<at::Tensor> all;
  for (auto const& group : param_groups())
    all.insert(all.end(), group.params().begin(), group.params().end());
  update(all);
  return loss;
}

void FusedOptimizer::update(std::vector<at::Tensor> const& parameters) {
  at::NoGradGuard const no_graph;
  std::vector<std::pair<std::size_t, Batch>> batches;  // with their groups
  for (at::Tensor const& parameter : parameters) {
    if (!parameter.grad().defined()) continue;
    std::size_t const group = group_of(parameter);
    auto const fits = [&](auto const& batch) {
      at::Tensor const& first = batch.second.parameters.front();
      return batch.first == group && first.scalar_type() == parameter.scalar_type() &&
             first.device() == parameter.device();
    };
    auto found = std::ranges::find_if(batches, fits);
    if (found == batches.end()) {
      batches.push_back({group, {&param_groups()[group].options(), {}, {}}});
      found = batches.end() - 1;
    }
    found->second.parameters.push_back(parameter);
    found->second.gradients.push_back(parameter.grad());
  }
  at::Tensor const word = where_to_skip(skip_, parameters);
  std::optional<at::Tensor> const skip = word.defined() ? std::optional(word) : std::nullopt;
  for (auto const& [group, batch] : batches) {
    run(batch, group < rates_.size() ? std::optional(rates_[group]) : std::nullopt, skip);
  }
}

void FusedOptimizer::prepare() {
  at::NoGradGuard const no_graph;
  for (std::size_t g = 0; g < param_groups().size(); ++g) {
    auto const& group = param_groups()[g];
    at::Device const device = group.params().empty() ? at::Device(at::kCPU) : group.params()[0].device();
    if (g == rates_.size()) rates_.push_back(at::empty({}, at::TensorOptions(at::kFloat).device(device)));
    rates_[g].fill_(group.options().get_lr());
  }
}

// ---- AdamW

void AdamWState::serialize(torch::serialize::InputArchive& archive) {
  read_tensor(archive, step, "step");
  read_tensor(archive, exp_avg, "exp_avg");
  read_tensor(archive, exp_avg_sq, "exp_avg_sq");
  read_tensor(archive, max_exp_avg_sq, "max_exp_avg_sq");
}

void AdamWState::serialize(torch::serialize::OutputArchive& archive) const {
  write_tensor(archive, step, "step");
  write_tensor(archive, exp_avg, "exp_avg");
  write_tensor(archive, exp_avg_sq, "exp_avg_sq");
  write_tensor(archive, max_exp_avg_sq, "max_exp_avg_sq");
}

AdamW::AdamW(std::vector<optim::OptimizerParamGroup> const& groups, optim::AdamWOptions defaults)
    : FusedOptimizer(groups, std::make_unique<optim::AdamWOptions>(checked(std::move(defaults)))) {
  for (auto const& group : param_groups()) {
    static_cast<void>(checked(static_cast<optim::AdamWOptions const&>(group.options())));
  }
}

AdamW::AdamW(std::vector<at::Tensor> parameters, optim::AdamWOptions defaults)
    : AdamW({optim::OptimizerParamGroup(std::move(parameters))}, std::move(defaults)) {}

AdamWState& AdamW::state_of(at::Tensor const& parameter) {
  auto& all = state();
  auto found = all.find(parameter.unsafeGetTensorImpl());
  if (found == all.end()) {
    at::NoGradGuard const no_graph;
    std::size_t const group = group_of(parameter);
    auto made = std::make_unique<AdamWState>();
    at::Tensor const like = parameter.detach();
    made->step = at::zeros({}, like.options().dtype(at::kFloat));
    made->exp_avg = at::zeros_like(like, at::MemoryFormat::Preserve);
    made->exp_avg_sq = at::zeros_like(like, at::MemoryFormat::Preserve);
    if (static_cast<optim::AdamWOptions const&>(param_groups()[group].options()).amsgrad()) {
      made->max_exp_avg_sq = at::zeros_like(like, at::MemoryFormat::Preserve);
    }
    found = all.emplace(parameter.unsafeGetTensorImpl(), std::move(made)).first;
  }
  return static_cast<AdamWState&>(*found->second);
}

void AdamW::run(Batch const& batch, std::optional<at::Tensor> const& rate,
                std::optional<at::Tensor> const& skip) {
  auto const& options = static_cast<optim::AdamWOptions const&>(*batch.options);
  std::vector<at::Tensor> steps, means, squares, largest;
  for (at::Tensor const& parameter : batch.parameters) {
    AdamWState const& state = state_of(parameter);
    steps.push_back(state.step);
    means.push_back(state.exp_avg);
    squares.push_back(state.exp_avg_sq);
    if (options.amsgrad()) largest.push_back(state.max_exp_avg_sq);
  }
  at::_foreach_add_(steps, 1);
  if (skip) at::_foreach_sub_(steps, std::vector<at::Tensor>(steps.size(), skip->reshape({})));
  auto const [first, second] = options.betas();
  auto const launch = [&](auto const& lr) {
    at::_fused_adamw_(batch.parameters, batch.gradients, means, squares, largest, steps, lr, first, second,
                      options.weight_decay(), options.eps(), options.amsgrad(), /*maximize=*/false,
                      /*grad_scale=*/{}, skip);
  };
  rate ? launch(*rate) : launch(options.lr());
}

void AdamW::save(torch::serialize::OutputArchive& archive) const {
  optim::serialize<AdamWState, optim::AdamWOptions>(archive, *this);
}

void AdamW::load(torch::serialize::InputArchive& archive) {
  optim::serialize<AdamWState, optim::AdamWOptions>(archive, *this);
}

// ---- SGD

SGD::SGD(std::vector<optim::OptimizerParamGroup> const& groups, optim::SGDOptions defaults)
    : FusedOptimizer(groups, std::make_unique<optim::SGDOptions>(checked(std::move(defaults)))) {
  for (auto const& group : param_groups()) {
    static_cast<void>(checked(static_cast<optim::SGDOptions const&>(group.options())));
  }
}

SGD::SGD(std::vector<at::Tensor> parameters, optim::SGDOptions defaults)
    : SGD({optim::OptimizerParamGroup(std::move(parameters))}, std::move(defaults)) {}

// Momentum begins with the first gradient, as PyTorch's does. Parameters that begin and others are updated in
// two kernels.
void SGD::run(Batch const& batch, std::optional<at::Tensor> const& rate,
              std::optional<at::Tensor> const& skip) {
  auto const& options = static_cast<optim::SGDOptions const&>(*batch.options);
  bool const has_momentum = options.momentum() != 0;
  std::vector<bool> begins;
  for (at::Tensor const& parameter : batch.parameters) {
    auto& kept = state()[parameter.unsafeGetTensorImpl()];
    begins.push_back(has_momentum && kept == nullptr);
    if (!begins.back()) continue;
    auto made = std::make_unique<optim::SGDParamState>();
    made->momentum_buffer(at::zeros_like(parameter.detach(), at::MemoryFormat::Preserve));
    kept = std::move(made);
  }
  for (bool const first : {true, false}) {
    std::vector<at::Tensor> parameters, gradients, momenta;
    for (std::size_t i = 0; i < batch.parameters.size(); ++i) {
      if (begins[i] != first) continue;
      parameters.push_back(batch.parameters[i]);
      gradients.push_back(batch.gradients[i]);
      if (!has_momentum) continue;
      auto& kept = *state()[batch.parameters[i].unsafeGetTensorImpl()];
      momenta.push_back(static_cast<optim::SGDParamState&>(kept).momentum_buffer());
    }
    if (parameters.empty()) continue;
    auto const launch = [&](auto const& lr) {
      at::_fused_sgd_(parameters, gradients, momenta, options.weight_decay(), options.momentum(), lr,
                      options.dampening(), options.nesterov(), /*maximize=*/false, first,
                      /*grad_scale=*/{}, skip);
    };
    rate ? launch(*rate) : launch(options.lr());
  }
}

void SGD::save(torch::serialize::OutputArchive& archive) const {
  optim::serialize<optim::SGDParamState, optim::SGDOptions>(archive, *this);
}

void SGD::load(torch::serialize::InputArchive& archive) {
  optim::serialize<optim::SGDParamState, optim::SGDOptions>(archive, *this);
}

}  // namespace ddp::libtorch
