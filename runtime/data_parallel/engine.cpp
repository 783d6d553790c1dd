#include "data_parallel/engine.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "data_parallel/replicas/refuse_capture.hpp"
#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"

namespace ddp {
namespace {

std::vector<TensorPool> memory_of_each(ReplicaSet const& replicas) {
  std::vector<TensorPool> all;
  for (std::size_t i = 0; i < replicas.size(); ++i)
    all.emplace_back(replicas.module(i).device(), replicas.module(i).shared_stream());
  return all;
}

// Parts that lie where they are used.
Scattered given(std::vector<Value> parts) {
  std::vector<BlockCopies> nothing(parts.size());
  return {std::move(parts), std::move(nothing), {}, {}};
}

thread_local int replicas_around = 0;  // passes that the calling thread is in

struct InReplica {
  InReplica() noexcept { ++replicas_around; }
  ~InReplica() { --replicas_around; }
  InReplica(InReplica const&) = delete;
  InReplica& operator=(InReplica const&) = delete;
};

}  // namespace

bool DataParallelModule::Engine::in_replica() noexcept { return replicas_around > 0; }

void refuse_backward_loss() {
  throw Error(ErrorCode::invalid_state, "backward_loss() comes after a forward_loss() that succeeded");
}

DataParallelModule::Engine::Engine(std::shared_ptr<Module> module, std::vector<Device> devices,
                                   Options options)
    : options_(std::move(options)),
      replicas_(std::move(module), std::move(devices), options_.timeout),
      inputs_(memory_of_each(replicas_)),
      targets_(memory_of_each(replicas_)),
      gradients_(memory_of_each(replicas_)),
      output_(options_.output_device.value_or(replicas_.module(0).device()),
              replicas_.module(0).shared_stream()) {}

template <class Enqueue>
Value DataParallelModule::Engine::in_order(Enqueue const& enqueue) {
  replicas_.follow_primary();
  try {
    return enqueue();
  } catch (...) {
    replicas_.lead_primary_after_error();
    throw;
  }
}

// Inputs of passes are released while the replicas still exist, since that may need their streams.
DataParallelModule::Engine::~Engine() { replicas_.synchronize(); }

void DataParallelModule::Engine::forget() noexcept {
  parts_.clear();
  outputs_.clear();
  part_gradients_.clear();
  with_loss_ = false;
}

// All enqueued work comes before later work on replica 0's stream.
void DataParallelModule::Engine::let_go_of_given() {
  std::vector<Value> given{std::exchange(input_, {}), std::exchange(target_, {}),
                           std::exchange(gradient_, {})};
  for (std::vector<Value>* const each : {&losses_, &output_gradients_}) {
    std::move(each->begin(), each->end(), std::back_inserter(given));
    each->clear();
  }
  kept_.keep(std::move(given), replicas_.stream(0));
}

void DataParallelModule::Engine::refresh() {
  refuse_capture(replicas_.stream(0).is_capturing());
  static_cast<void>(in_order([this]() -> Value {
    replicas_.refresh();
    replicas_.threads().run(replicas_.size(), [this](std::size_t i) { replicas_.unpack_values(i); });
    replicas_.lead_primary();
    return {};
  }));
}

// A target without tensors belongs to every replica that has a part of the input.
Scattered DataParallelModule::Engine::split_target(Value const& target, Scattered const& inputs) {
  std::size_t const active = inputs.parts.size();
  Scattered parts = plan_scatter(target, targets_, options_.dim, "target");
  if (!parts.extent) return given(std::vector<Value>(active, target));
  require(!inputs.extent || inputs.extent == parts.extent, [&] {
    return text("the target has extent ", *parts.extent, " along dimension ", options_.dim, ", expected ",
                *inputs.extent, ", that of the input");
  });
  require(parts.parts.size() == active, [&] {
    return text("the target falls into ", parts.parts.size(),
                " parts and the input, without tensors, is for ", active, " replicas");
  });
  return parts;
}

Value DataParallelModule::Engine::forward(Value const& input, Value const* target) {
  forget();  // backward() throws until all has succeeded, and memory can be reused
  refuse_capture(replicas_.stream(0).is_capturing());
  let_go_of_given();
  Scattered const input_parts = plan_scatter(input, inputs_, options_.dim, "input");
  std::size_t const active = input_parts.parts.size();
  Scattered target_parts;
  if (target != nullptr) target_parts = split_target(*target, input_parts);
  Scattered const& batch = !input_parts.extent && target_parts.extent ? target_parts : input_parts;
  input_ = input;
  if (target != nullptr) target_ = *target;
  outputs_.assign(active, {});
  losses_.assign(active, {});
  output_gradients_.assign(active, {});
  Value result = in_order([&] {
    replicas_.refresh();
    replicas_.threads().run(replicas_.size(), [&](std::size_t i) {
      replicas_.unpack_values(i);
      if (i >= active) return;
      InReplica const here;
      run_copies(input_parts.copies[i], replicas_.stream(i));
      outputs_[i] = replicas_.module(i).forward(input_parts.parts[i]);
      if (target == nullptr) return;
      run_copies(target_parts.copies[i], replicas_.stream(i));
      ReplicaLoss loss = options_.loss(replicas_.module(i), outputs_[i], target_parts.parts[i],
                                       {i, batch.rows[i], batch.extent.value_or(0)});
      losses_[i] = std::move(loss.loss);
      output_gradients_[i] = std::move(loss.output_gradient);
    });
    Gathered const gathered = plan_gather(
        target == nullptr ? outputs_ : losses_,
        [this](Value const& /*like*/) -> TensorPool& { return output_; }, options_.dim, "the output");
    if (gathered.scalars && target == nullptr && !warned_) {
      warned_ = true;
      log(LogLevel::warning, scalar_warning(active));
    }
    return put_together(gathered);
  });
  parts_ = input_parts.parts;
  with_loss_ = target != nullptr;
  return result;
}

Value DataParallelModule::Engine::put_together(Gathered const& gathered) {
  for (std::size_t i = 0; i < gathered.copies.size(); ++i)
    run_copies(gathered.copies[i], replicas_.stream(i));
  // A result in host memory is complete when the pass returns. On a CPU a module's stream may be a thread.
  if (gathered.on_host || replicas_.module(0).device().kind == DeviceKind::cpu) {
    for (std::size_t i = 0; i < gathered.copies.size(); ++i) replicas_.stream(i).synchronize();
  }
  replicas_.lead_primary();
  return gathered.value;
}

TensorPool& DataParallelModule::Engine::memory_on(Device device) {
  auto const found = std::ranges::find(input_gradients_, device, &TensorPool::device);
  if (found != input_gradients_.end()) return *found;
  return input_gradients_.emplace_back(device, replicas_.module(0).shared_stream());
}

Value DataParallelModule::Engine::backward(Value const* output_gradient, GradientReady const& ready) {
  refuse_capture(replicas_.stream(0).is_capturing());
  if (parts_.empty() || (output_gradient == nullptr && !with_loss_)) {
    if (output_gradient == nullptr) refuse_backward_loss();
    throw Error(ErrorCode::invalid_state, "backward() comes after a forward() that succeeded");
  }
  std::size_t const active = parts_.size();
  part_gradients_.clear();
  kept_.keep({std::exchange(gradient_, {})}, replicas_.stream(0));
  Scattered gradients;
  if (output_gradient != nullptr) {
    gradient_ = *output_gradient;
    gradients = plan_split(*output_gradient, outputs_, gradients_, options_.dim);
  } else {
    gradients = given(output_gradients_);
  }
  replicas_.follow_gradients();
  part_gradients_.assign(active, {});
  Value result = in_order([&] {
    replicas_.threads().run(replicas_.size(), [&](std::size_t i) {
      replicas_.begin_backward(i);
      if (i < active) {
        InReplica const here;
        run_copies(gradients.copies[i], replicas_.stream(i));
        part_gradients_[i] = replicas_.module(i).backward(
            gradients.parts[i], [this, i](std::size_t parameter) { replicas_.gradient_ready(i, parameter); });
      }
      replicas_.end_backward(i);
    });
    replicas_.reduce_gradients();
    std::vector<Device> const given = devices_of(input_);
    Device const otherwise = given.empty() ? replicas_.module(0).device() : given.front();
    auto const beside = [&](Value const& like) -> TensorPool& {
      return memory_on(like.is_tensor() ? like.view().device : otherwise);
    };
    return put_together(
        plan_gather(part_gradients_, beside, options_.dim, "the gradient of the input", input_));
  });
  for (std::size_t p = replicas_.parameter_count(); ready && p-- > 0;) ready(p);
  return result;
}

}  // namespace ddp
