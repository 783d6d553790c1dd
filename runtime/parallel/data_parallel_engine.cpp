#include "parallel/data_parallel_engine.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"

namespace ddp {
namespace {

std::vector<StepMemory> memory_of_each(ReplicaSet const& replicas) {
  std::vector<StepMemory> all;
  for (std::size_t i = 0; i < replicas.size(); ++i)
    all.emplace_back(replicas.module(i).device(), replicas.module(i).shared_stream());
  return all;
}

// Where the first tensor of a value lies.
std::optional<Device> device_of(Value const& value) {
  if (value.is_tensor()) return value.view().device;
  std::optional<Device> found;
  if (value.is_list()) {
    for (Value const& each : value.list()) {
      if (!found) found = device_of(each);
    }
  }
  if (value.is_map()) {
    for (auto const& [name, each] : value.map()) {
      if (!found) found = device_of(each);
    }
  }
  return found;
}

}  // namespace

DataParallelModule::Engine::Engine(std::shared_ptr<Module> module, std::vector<Device> devices,
                                   Options options)
    : options_(std::move(options)),
      replicas_(std::move(module), std::move(devices), options_.timeout),
      inputs_(memory_of_each(replicas_)),
      targets_(memory_of_each(replicas_)),
      gradients_(memory_of_each(replicas_)),
      output_(options_.output_device.value_or(replicas_.module(0).device()),
              replicas_.module(0).shared_stream()),
      input_device_(replicas_.module(0).device()) {}

// Before anything is allocated, which CUDA would refuse with words of its own.
void DataParallelModule::Engine::refuse_capture() {
  require(
      !replicas_.stream(0).is_capturing(),
      "DataParallel cannot be captured into a CUDA graph: several GPUs in one process would wait for each "
      "other; capture a step of DistributedDataParallel, one process a GPU");
}

void DataParallelModule::Engine::begin_step() {
  refuse_capture();
  replicas_.follow_primary();
}

// All replicas' messages are enqueued before any user code runs: what that does may wait for the GPU (a
// library's first call that allocates), which would wait for a message that another thread cannot enqueue
// meanwhile.
void DataParallelModule::Engine::enqueue_refresh() {
  if (replicas_.size() == 1) return;
  replicas_.threads().run(replicas_.size(), [this](std::size_t i) { replicas_.refresh(i); });
}

void DataParallelModule::Engine::refresh() {
  begin_step();
  enqueue_refresh();
  replicas_.lead_primary();
}

Value DataParallelModule::Engine::loss_of(std::size_t replica, Value const& target,
                                          ReplicaShare const& share) {
  ReplicaLoss loss = options_.loss(replicas_.module(replica), outputs_[replica], target, share);
  output_gradients_[replica] = std::move(loss.output_gradient);
  return std::move(loss.loss);
}

Value DataParallelModule::Engine::forward(Value const& input, Value const* target) {
  refuse_capture();
  for (auto* const memories : {&inputs_, &targets_}) {
    for (StepMemory& memory : *memories) memory.begin_step();
  }
  Scattered const input_parts = plan_scatter(input, inputs_, options_.dim, "input");
  std::size_t const active = input_parts.parts.size();
  Scattered target_parts;
  if (target != nullptr) {
    target_parts = plan_scatter(*target, targets_, options_.dim, "target");
    require(target_parts.parts.size() == active, [&] {
      return text("the target falls into ", target_parts.parts.size(), " parts and the input into ", active,
                  "; they must have the same extent along dimension ", options_.dim);
    });
  }
  std::size_t all_rows = 0;
  for (std::size_t const rows : input_parts.rows) all_rows += rows;
  input_device_ = device_of(input).value_or(replicas_.module(0).device());
  begin_step();
  parts_.clear();  // until all have succeeded, backward() has nothing to go on from
  outputs_.assign(active, {});
  output_gradients_.assign(active, {});
  std::vector<Value> results(active);
  enqueue_refresh();
  replicas_.threads().run(active, [&](std::size_t i) {
    run_copies(input_parts.copies[i], replicas_.stream(i));
    outputs_[i] = replicas_.module(i).forward(input_parts.parts[i]);
    if (target == nullptr) return;
    run_copies(target_parts.copies[i], replicas_.stream(i));
    results[i] = loss_of(i, target_parts.parts[i], {i, input_parts.rows[i], all_rows});
  });
  output_.begin_step();
  Value result = put_together(target == nullptr ? outputs_ : results, output_, target == nullptr);
  parts_ = input_parts.parts;
  with_loss_ = target != nullptr;
  return result;
}

Value DataParallelModule::Engine::put_together(std::vector<Value> const& values, StepMemory& memory,
                                               bool warn) {
  Gathered const gathered = plan_gather(values, memory, options_.dim, "the output");
  if (gathered.scalars && warn && !warned_) {
    warned_ = true;
    log(LogLevel::warning, scalar_warning(values.size()));
  }
  bool const to_host =
      memory.device().kind == DeviceKind::cpu && replicas_.module(0).device().kind == DeviceKind::cuda;
  for (std::size_t i = 0; i < values.size(); ++i) run_copies(gathered.copies[i], replicas_.stream(i));
  if (to_host) {
    for (std::size_t i = 0; i < values.size(); ++i) replicas_.stream(i).synchronize();
  }
  replicas_.lead_primary();
  return gathered.value;
}

Value DataParallelModule::Engine::backward(Value const* output_gradient, GradientReady const& ready) {
  if (parts_.empty() || (output_gradient == nullptr && !with_loss_)) {
    throw Error(ErrorCode::invalid_state, output_gradient == nullptr
                                              ? "backward_loss() comes after a forward_loss() that succeeded"
                                              : "backward() comes after a forward() that succeeded");
  }
  std::size_t const active = parts_.size();
  for (StepMemory& memory : gradients_) memory.begin_step();
  Scattered gradients;
  if (output_gradient != nullptr) {
    gradients = plan_split(*output_gradient, outputs_, gradients_, options_.dim);
  } else {
    gradients = {output_gradients_, std::vector<BlockCopies>(active), {}};
  }
  begin_step();
  part_gradients_.assign(active, {});
  replicas_.threads().run(replicas_.size(), [&](std::size_t i) {
    replicas_.zero_gradients(i);
    if (i >= active) return;
    run_copies(gradients.copies[i], replicas_.stream(i));
    part_gradients_[i] = replicas_.module(i).backward(gradients.parts[i]);
  });
  // Only now: a replica that failed would leave the others waiting.
  if (replicas_.size() > 1) {
    replicas_.threads().run(replicas_.size(), [this](std::size_t i) { replicas_.reduce_gradients(i); });
  }
  auto memory = std::find_if(input_gradients_.begin(), input_gradients_.end(),
                             [this](StepMemory const& each) { return each.device() == input_device_; });
  if (memory == input_gradients_.end()) {
    memory = input_gradients_.insert(memory, {input_device_, replicas_.module(0).shared_stream()});
  }
  memory->begin_step();
  Value result = put_together(part_gradients_, *memory, false);
  for (std::size_t p = replicas_.parameter_count(); p-- > 0;) ready(p);
  return result;
}

}  // namespace ddp
