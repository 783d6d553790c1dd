#include "libtorch/checkpoint/optimizer_state.hpp"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <memory>
#include <unordered_set>
#include <utility>

#include "ddp/core/error.hpp"
#include "ddp/core/text.hpp"
#include "ddp/libtorch/optimizers.hpp"

namespace ddp::libtorch {
namespace {

namespace optim = torch::optim;
using Group = optim::OptimizerParamGroup;

std::string const& name_of(at::Tensor const& parameter, ParameterNames const& names) {
  auto const found = names.find(parameter.unsafeGetTensorImpl());
  require(found != names.end(), [&] {
    return text("the optimizer has a parameter of shape ", parameter.sizes(),
                " that no module of the checkpoint has: give all modules whose parameters it trains");
  });
  return found->second;
}

at::Tensor zeros_for(at::Tensor const& parameter) {
  return at::zeros_like(parameter.detach(), at::MemoryFormat::Preserve);
}

template <class State, class AdamsOptions>
std::unique_ptr<optim::OptimizerParamState> first_adam(Group& group, at::Tensor const& parameter) {
  auto state = std::make_unique<State>();
  state->exp_avg(zeros_for(parameter)).exp_avg_sq(zeros_for(parameter));
  if (static_cast<AdamsOptions&>(group.options()).amsgrad()) state->max_exp_avg_sq(zeros_for(parameter));
  return state;
}

// The state that an optimizer's step() makes for a parameter that it sees for the first time; null if it
// keeps none.
std::unique_ptr<optim::OptimizerParamState> first_state(optim::Optimizer& optimizer, Group& group,
                                                        at::Tensor const& parameter,
                                                        std::string const& name) {
  if (dynamic_cast<optim::Adam*>(&optimizer) != nullptr)
    return first_adam<optim::AdamParamState, optim::AdamOptions>(group, parameter);
  if (dynamic_cast<optim::AdamW*>(&optimizer) != nullptr)
    return first_adam<optim::AdamWParamState, optim::AdamWOptions>(group, parameter);
  if (dynamic_cast<optim::SGD*>(&optimizer) != nullptr || dynamic_cast<SGD*>(&optimizer) != nullptr) {
    auto const& options = static_cast<optim::SGDOptions&>(group.options());
    if (options.momentum() == 0) return nullptr;
    if (options.dampening() != 0) {
      throw Error(ErrorCode::unsupported,
                  text("parameter \"", name,
                       "\" has no momentum yet, and with dampening SGD does not begin with zeros: make the "
                       "Checkpoint, or the Replicated, after its first step()"));
    }
    auto state = std::make_unique<optim::SGDParamState>();
    state->momentum_buffer(zeros_for(parameter));
    return state;
  }
  if (dynamic_cast<optim::RMSprop*>(&optimizer) != nullptr) {
    auto const& options = static_cast<optim::RMSpropOptions&>(group.options());
    auto state = std::make_unique<optim::RMSpropParamState>();
    state->square_avg(zeros_for(parameter));
    if (options.momentum() > 0) state->momentum_buffer(zeros_for(parameter));
    if (options.centered()) state->grad_avg(zeros_for(parameter));
    return state;
  }
  throw Error(
      ErrorCode::unsupported,
      "this optimizer's state is not known: expected SGD, Adam, AdamW, RMSprop or Adagrad. Save it with "
      "torch::save() beside a Checkpoint of the module alone");
}

class Visit {
 public:
  Visit(std::string name, StateVisitor const& visitor) : name_(std::move(name)), visitor_(visitor) {}
  void tensor(char const* what, at::Tensor const& tensor) const {
    if (tensor.defined()) visitor_({text("state.", name_, ".", what), tensor, {}, tensor});
  }
  void count(std::int64_t& count) const {
    visitor_({text("state.", name_, ".step"), at::scalar_tensor(count, at::kLong),
              [&](at::Tensor const& value) { count = value.item<std::int64_t>(); },
              at::from_blob(&count, {}, at::kLong)});
  }
  // A count on the parameter's device: in the file it is what the other optimizers write.
  void count(at::Tensor const& count) const {
    visitor_({text("state.", name_, ".step"), count.to(at::kCPU, at::kLong),
              [&](at::Tensor const& value) { count.fill_(value.item()); }, count});
  }

 private:
  std::string name_;
  StateVisitor const& visitor_;
};

template <class AnyAdam>
bool visit_adam(AnyAdam* state, Visit const& visit) {
  if (state == nullptr) return false;
  visit.count(state->step());
  visit.tensor("exp_avg", state->exp_avg());
  visit.tensor("exp_avg_sq", state->exp_avg_sq());
  visit.tensor("max_exp_avg_sq", state->max_exp_avg_sq());
  return true;
}

void visit_one(optim::OptimizerParamState& any, Visit const& visit) {
  if (auto* const fused = dynamic_cast<AdamWState*>(&any)) {
    visit.count(fused->step);
    visit.tensor("exp_avg", fused->exp_avg);
    visit.tensor("exp_avg_sq", fused->exp_avg_sq);
    visit.tensor("max_exp_avg_sq", fused->max_exp_avg_sq);
    return;
  }
  if (visit_adam(dynamic_cast<optim::AdamParamState*>(&any), visit)) return;
  if (visit_adam(dynamic_cast<optim::AdamWParamState*>(&any), visit)) return;
  if (auto* const state = dynamic_cast<optim::SGDParamState*>(&any)) {
    visit.tensor("momentum_buffer", state->momentum_buffer());
  } else if (auto* const root = dynamic_cast<optim::RMSpropParamState*>(&any)) {
    visit.count(root->step());
    visit.tensor("square_avg", root->square_avg());
    visit.tensor("momentum_buffer", root->momentum_buffer());
    visit.tensor("grad_avg", root->grad_avg());
  } else if (auto* const sums = dynamic_cast<optim::AdagradParamState*>(&any)) {
    visit.count(sums->step());
    visit.tensor("sum", sums->sum());
  }
}

}  // namespace

std::string inside(std::string const& name, std::string const& part) {
  return name.empty() ? part : text(name, '.', part);
}

void make_state(optim::Optimizer& optimizer, ParameterNames const& names) {
  at::NoGradGuard const no_graph;
  for (Group& group : optimizer.param_groups()) {
    for (at::Tensor const& parameter : group.params()) {
      std::string const& name = name_of(parameter, names);
      if (auto* const fused = dynamic_cast<AdamW*>(&optimizer)) {
        static_cast<void>(fused->state_of(parameter));
        continue;
      }
      void* const key = parameter.unsafeGetTensorImpl();
      if (optimizer.state().find(key) != optimizer.state().end()) continue;
      if (auto state = first_state(optimizer, group, parameter, name))
        optimizer.state()[key] = std::move(state);
    }
  }
}

void visit_state(optim::Optimizer& optimizer, ParameterNames const& names, StateVisitor const& visitor) {
  std::unordered_set<c10::TensorImpl const*> seen;  // Module::parameters() has tied ones several times
  std::size_t number = 0;
  for (Group& group : optimizer.param_groups()) {
    for (at::Tensor const& parameter : group.params()) {
      auto const found = optimizer.state().find(parameter.unsafeGetTensorImpl());
      bool const is_new = seen.insert(parameter.unsafeGetTensorImpl()).second;
      if (found == optimizer.state().end() || !is_new) continue;
      visit_one(*found->second, Visit(name_of(parameter, names), visitor));
    }
    std::size_t const index = number++;
    if (!group.has_options()) continue;
    visitor({text("param_groups.", index, ".lr"), at::scalar_tensor(group.options().get_lr(), at::kDouble),
             [&](at::Tensor const& lr) { group.options().set_lr(lr.item<double>()); }});
  }
}

}  // namespace ddp::libtorch
