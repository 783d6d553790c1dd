// Construction of a Reducer, and access to its parameters.
#include <utility>

#include "ddp/core/text.hpp"
#include "reducer/parameter_check.hpp"
#include "reducer/reducer_impl.hpp"

namespace ddp {

Reducer::Impl::Impl(std::string name, std::shared_ptr<ControlPlane> control, std::vector<Rank> group,
                    std::vector<ReducerLane> lanes, std::vector<Parameter> parameters, ReducerOptions options,
                    std::chrono::milliseconds timeout)
    : name_(std::move(name)),
      control_(std::move(control)),
      group_(std::move(group)),
      lanes_(std::move(lanes)),
      parameters_(std::move(parameters)),
      options_(options),
      timeout_(timeout),
      expected_marks_(parameters_.size(), options.allow_repeated_ready ? 0U : 1U) {
  check_parameters(parameters_, options_);
  for (Parameter const& parameter : parameters_) {
    specs_.push_back({parameter.value.count(), parameter.value.dtype, parameter.value.device});
  }
  for (ReducerLane const& lane : lanes_) {
    require(lane.device.kind != DeviceKind::cpu || host_stream(*lane.compute_stream).is_inline(),
            "a Reducer of CPU gradients computes in the calling thread: give it an inline compute stream");
    heads_.push_back(StepHead::make(lane));
    used_.emplace_back(lane, parameters_.size(), options_.unused == ReducerOptions::Unused::error);
  }
  build(reverse_order(parameters_.size()));
}

void Reducer::Impl::check_index(std::size_t index) const {
  if (index < parameters_.size()) return;
  throw Error(ErrorCode::invalid_argument, text("there is no parameter ", index, ", this object has ",
                                                parameters_.size(), " (0 to ", parameters_.size() - 1, ")"));
}

std::string Reducer::Impl::name_of(std::size_t index) const { return parameter_name(parameters_, index); }

TensorView Reducer::Impl::gradient(std::size_t index) const {
  check_index(index);
  return memory_.gradient(index);
}

std::vector<std::string> Reducer::Impl::exchange(std::string_view what, std::string_view value) {
  return control_->all_gather(text(name_, "/", what), value, group_, Deadline::after(timeout_));
}

}  // namespace ddp
