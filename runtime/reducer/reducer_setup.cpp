// Construction of a Reducer, and access to its parameters.
#include <algorithm>
#include <cstddef>
#include <utility>

#include "ddp/core/text.hpp"
#include "reducer/checks/parameter_check.hpp"
#include "reducer/reducer_impl.hpp"

namespace ddp {
namespace {

void check_compute_stream(Device device, Stream& stream) {
  require(device.kind != DeviceKind::cpu || host_stream(stream).is_inline(),
          "a Reducer of CPU gradients computes in the calling thread: give it an inline compute stream");
}

}  // namespace

Reducer::Impl::Impl(std::string name, std::shared_ptr<ControlPlane> control, std::vector<Rank> group,
                    std::vector<ReducerLane> lanes, std::vector<Parameter> parameters, ReducerOptions options,
                    std::chrono::milliseconds timeout)
    : name_(std::move(name)),
      control_(std::move(control)),
      group_(std::move(group)),
      lanes_(std::move(lanes)),
      parameters_(std::move(parameters)),
      options_(std::move(options)),
      timeout_(timeout),
      expected_marks_(parameters_.size(), options_.allow_repeated_ready ? 0U : 1U),
      summed_elsewhere_(parameters_.size()) {
  check_parameters(parameters_, options_);
  for (Parameter const& parameter : parameters_) {
    specs_.push_back({parameter.value.count(), parameter.value.dtype, parameter.value.device});
  }
  for (ReducerLane const& lane : lanes_) {
    check_compute_stream(lane.device, *lane.compute_stream);
    heads_.push_back(StepHead::make(lane));
    used_.emplace_back(lane, parameters_.size(), options_.unused == ReducerOptions::Unused::error);
  }
  make_checks();
  if (options_.statistics) statistics_ = std::make_unique<Statistics>(lanes_);
  for (std::size_t l = 0; options_.verify_every > 0 && l < lanes_.size(); ++l) {
    weight_checks_.emplace_back(lanes_[l], parameters_);
  }
  if (options_.uneven != ReducerOptions::Uneven::refuse) has_data_.emplace(lanes_[0], 1, true);
  all_used_.assign(parameters_.size(), options_.unused == ReducerOptions::Unused::error ? 1 : 0);
  build(reverse_order(parameters_.size()));
}

void Reducer::Impl::check_index(std::size_t index) const {
  if (index < parameters_.size()) return;
  throw Error(ErrorCode::invalid_argument, text("there is no parameter ", index, ", this object has ",
                                                parameters_.size(), " (0 to ", parameters_.size() - 1, ")"));
}

std::string Reducer::Impl::name_of(std::size_t index) const { return parameter_name(parameters_, index); }

void Reducer::Impl::compute_on(Stream& stream) {
  require_usable();
  auto const lane = std::ranges::find(lanes_, stream.device(), &ReducerLane::device);
  require(lane != lanes_.end(), [&] {
    return text("compute_on(): expected a stream of a device on which parameters lie, found one of ",
                stream.device());
  });
  check_compute_stream(lane->device, stream);
  if (lane->compute_stream == &stream) return;
  if (in_step_) or_fail([&] { lane->comm_stream->wait(*lane->compute_stream); });
  lane->compute_stream = &stream;
}

void Reducer::Impl::set_comm_hook(CommHook hook) {
  require_usable();
  if (steps_ != 0 || in_step_) {
    throw Error(ErrorCode::invalid_state,
                text("set_comm_hook() after synchronised step ", in_step_ ? "0 has begun" : "0",
                     ": ranks must change at the same time, so call it before the first backward pass"));
  }
  require(!hook.reduce || !hook.name.empty(), "set_comm_hook(): give the hook a name, which ranks compare");
  std::string const name = hook.reduce ? text("the comm hook \"", hook.name, '"') : "no comm hook";
  auto const all = exchange("hook", name);
  for (std::size_t r = 1; r < all.size(); ++r) {
    if (all[r] == all[0]) continue;
    throw CommError(ErrorCode::mismatch,
                    text("rank ", group_[r], " would reduce gradients with ", all[r], "; rank ", group_[0],
                         " with ", all[0], "; give every rank the same hook"));
  }
  hook_ = std::move(hook);
  if (hook_.reduce) hook_.name = name;
}

void Reducer::Impl::on_bucket_ready(BucketReady update) {
  require_usable();
  if (in_step_) {
    throw Error(
        ErrorCode::invalid_state,
        "on_bucket_ready() in the middle of a synchronised step, some of whose buckets may be through: "
        "call it between steps");
  }
  require(!update || (options_.unused != ReducerOptions::Unused::error &&
                      options_.nonfinite != ReducerOptions::Nonfinite::error &&
                      options_.uneven != ReducerOptions::Uneven::error),
          "on_bucket_ready(): with ReducerOptions::unused, nonfinite or uneven = error a step may be refused "
          "at its end, when its first parameters would be updated already; set unused to zero, nonfinite to "
          "flag, uneven to divide_by_live");
  if (update && update_streams_.empty()) {
    for (ReducerLane const& lane : lanes_) update_streams_.push_back(make_comm_stream(lane.device));
    if (steps_ > 0) choose_queues();
  }
  if (!update) update_streams_.clear();
  update_ = std::move(update);
}

void Reducer::Impl::rebind_value(std::size_t index, TensorView const& value) {
  check_index(index);
  TensorView& now = parameters_[index].value;
  require(value.shape == now.shape && value.dtype == now.dtype && value.device == now.device, [&] {
    return text("rebind_value(", index, "): expected ", describe(now), " for ", name_of(index), ", found ",
                describe(value), "; a parameter of another form needs a new DistributedDataParallel");
  });
  require_memory([&] { return name_of(index); }, value);
  claim_->move(now, value);
  now = value;
}

TensorView Reducer::Impl::gradient(std::size_t index) const {
  check_index(index);
  return memory_.gradient(index);
}

std::vector<std::string> Reducer::Impl::exchange(std::string_view what, std::string_view value) {
  return control_->all_gather(text(name_, "/", what), value, group_, Deadline::after(timeout_));
}

}  // namespace ddp
