#include "data_parallel/replicas/replica_set.hpp"

#include <algorithm>
#include <exception>
#include <map>
#include <string>
#include <utility>

#include "data_parallel/replicas/clone.hpp"
#include "data_parallel/try_or_log.hpp"
#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"
#include "ddp/device/tensor_ops.hpp"

namespace ddp {
namespace {

// A tied parameter's gradient would be added up twice.
void refuse_tied(std::vector<Parameter> const& parameters) {
  std::map<void const*, std::string const*> values;
  std::map<void const*, std::string const*> gradients;
  auto const look_at = [](auto& seen, TensorView const& view, Parameter const& parameter, char const* what) {
    if (view.data == nullptr || view.count() == 0) return;
    auto const found = seen.emplace(view.data, &parameter.name);
    require(found.second, [&] {
      return text("parameters \"", *found.first->second, "\" and \"", parameter.name, "\" have the same ",
                  what, ", which would be added up twice; list a tied parameter once");
    });
  };
  for (Parameter const& parameter : parameters) {
    look_at(values, parameter.value, parameter, "value");
    look_at(gradients, parameter.gradient, parameter, "gradient");
  }
}

std::vector<void*> gradient_addresses(Module& module) {
  std::vector<void*> all;
  for (Parameter const& parameter : module.parameters()) all.push_back(parameter.gradient.data);
  return all;
}

}  // namespace

ReplicaSet::ReplicaSet(std::shared_ptr<Module> module, std::vector<Device> devices,
                       std::chrono::milliseconds timeout, Exchange exchange)
    : replicas_(devices.size()), threads_(std::move(devices)) {
  replicas_[0].module = std::move(module);
  Module& primary = *replicas_[0].module;
  std::string const shared = cards_in_common(threads_.devices());
  bool const direct = exchange == Exchange::direct || !shared.empty();
  value_layout_ =
      direct ? FlatLayout(values_of(primary)) : FlatLayout(values_of(primary), kSmallValue, kPackOfValues);
  packs_ahead_ = !direct && std::ranges::count_if(value_layout_.messages, &FlatLayout::Message::packed) > 1;
  std::vector<TensorView> shapes;
  auto const parameters = primary.parameters();
  refuse_tied(parameters);
  for (Parameter const& parameter : parameters) shapes.push_back(parameter.value);
  parameter_count_ = shapes.size();
  gradient_layout_ = FlatLayout(shapes);
  for (std::size_t i = 0; i < size(); ++i) make_replica(i);
  gradients_at_ = gradient_addresses(primary);
  if (size() == 1) return;
  backward_plan_ = std::make_shared<BackwardPlan const>(gradient_layout_, bucket_bytes(gradient_layout_));
  for (std::size_t i = 0; i < size(); ++i)
    replicas_[i].progress.emplace(backward_plan_, threads_.devices()[i]);
  if (direct) {
    log(LogLevel::info,
        text("DataParallel: copies and sums instead of a communicator", shared.empty() ? "" : "; ", shared));
    direct_.emplace(threads_.devices(), gradient_layout_);
  } else {
    connect(timeout);
  }
  for (std::size_t i = 0; i < (direct_ ? 1 : size()); ++i) make_message_stream(i);
}

// Waits for all streams, even if one has failed.
void ReplicaSet::synchronize() noexcept {
  try_or_log([this] {
    threads_.run(size(), [this](std::size_t i) {
      for (Stream* const each : {replicas_[i].message_stream.get(), &stream(i)}) {
        if (each != nullptr) try_or_log([&] { each->synchronize(); });
      }
    });
  });
}

ReplicaSet::~ReplicaSet() {
  synchronize();  // communicators and memory outlive the operations on streams
  try {
    threads_.run(size(), [this](std::size_t i) { replicas_[i].communicator.reset(); });
  } catch (std::exception const& error) {
    log(LogLevel::error, error.what());
  }
  for (Replica const& replica : replicas_) {
    if (replica.control) replica.control->leave();
  }
}

void ReplicaSet::make_replica(std::size_t replica) {
  Device const device = threads_.devices()[replica];
  Replica& mine = replicas_[replica];
  if (replica > 0) mine.module = checked_clone(*replicas_[0].module, device);
  mine.values = CoalescedTensors(value_layout_, values_of(*mine.module), device);
  for (std::size_t m = 0; packs_ahead_ && m < value_layout_.messages.size(); ++m)
    mine.arrived.emplace_back(device);
  bind_gradients(replica);
  log_placements(text("replica ", replica, ": "), *mine.module);
}

// Replica 0 keeps its gradients where they are. The others write theirs straight into messages, if they can.
void ReplicaSet::bind_gradients(std::size_t replica) {
  Replica& mine = replicas_[replica];
  Device const device = threads_.devices()[replica];
  auto const parameters = mine.module->parameters();
  bool bindable = true;
  bool placed = true;
  for (Parameter const& parameter : parameters) {
    bool const here = parameter.gradient.data != nullptr || parameter.value.count() == 0;
    require(here || parameter.bind_gradient, [&] {
      return text("parameter \"", parameter.name,
                  "\" has neither a gradient nor a bind_gradient; a module says where its gradients are");
    });
    bindable = bindable && parameter.bind_gradient;
    placed = placed && here;
  }
  if (bindable && (replica > 0 || !placed)) {
    mine.gradients = CoalescedTensors(gradient_layout_, device);
    auto const memory = std::make_shared<std::vector<Tensor>>(mine.gradients.memory());
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      TensorView const place = mine.gradients.place(gradient_layout_, p, parameters[p].value.shape);
      if (replica == 0 && parameters[p].gradient.data != nullptr)
        copy_elements(place, parameters[p].gradient, stream(replica));
      parameters[p].bind_gradient({place, memory});
    }
    stream(replica).synchronize();  // afterwards the gradients' previous memory may be freed
    // The module may be used longer than this object, and by itself.
    mine.module->keep_gradient_memory(memory);
    return;
  }
  use_gradients_of_module(replica);
}

void ReplicaSet::use_gradients_of_module(std::size_t replica) {
  Replica& mine = replicas_[replica];
  Device const device = threads_.devices()[replica];
  std::vector<TensorView> gradients;
  for (Parameter const& parameter : mine.module->parameters()) {
    TensorView const& gradient = parameter.gradient;
    require(gradient.shape == parameter.value.shape && gradient.dtype == parameter.value.dtype &&
                gradient.device == device,
            [&] {
              return text("the gradient of parameter \"", parameter.name, "\" is ", describe(gradient),
                          ", expected ", describe(parameter.value), ", as its value");
            });
    gradients.push_back(gradient);
  }
  mine.gradients = CoalescedTensors(gradient_layout_, gradients, device);
}

void ReplicaSet::follow_gradients() {
  auto found = gradient_addresses(module(0));
  if (found == gradients_at_) return;
  stream(0).synchronize();  // messages of the last step are in memory that is freed now
  use_gradients_of_module(0);
  gradients_at_ = std::move(found);
}

// If the replica's stream is inline, nothing can run at the same time, so messages run inline too.
void ReplicaSet::make_message_stream(std::size_t replica) {
  Replica& mine = replicas_[replica];
  Device const device = threads_.devices()[replica];
  auto const* const host = dynamic_cast<HostStream const*>(&stream(replica));
  bool const in_place = host != nullptr && host->is_inline();
  mine.message_stream = in_place ? HostStream::inline_stream(device.index) : make_comm_stream(device);
}

void ReplicaSet::unpack_values(std::size_t replica) {
  if (size() == 1) return;
  Replica& mine = replicas_[replica];
  for (std::size_t m = 0; replica > 0 && m < value_layout_.messages.size(); ++m) {
    if (packs_ahead_) mine.arrived[m].block(stream(replica));
    mine.values.unpack(m, stream(replica));
  }
  if (packs_ahead_) stream(replica).wait(*mine.message_stream);
}

void ReplicaSet::begin_backward(std::size_t replica) {
  Replica& mine = replicas_[replica];
  if (mine.progress) mine.progress->begin();
  if (replica == 0) return;
  mine.gradients.zero(stream(replica));
  mine.gradients.unpack(stream(replica));
}

void ReplicaSet::gradient_ready(std::size_t replica, std::size_t parameter) {
  require(parameter < parameter_count_, [&] {
    return text("backward() says that the gradient of parameter ", parameter, " is ready; the module has ",
                parameter_count_, " parameters, counted from 0");
  });
  if (size() > 1) replicas_[replica].progress->ready(parameter, stream(replica));
}

void ReplicaSet::end_backward(std::size_t replica) {
  if (size() == 1) return;
  Replica& mine = replicas_[replica];
  mine.gradients.pack(stream(replica));
  mine.progress->end(stream(replica));
}

void ReplicaSet::follow_primary() {
  for (std::size_t i = 1; i < size(); ++i) stream(i).wait(stream(0));
}

void ReplicaSet::lead_primary() {
  for (std::size_t i = 1; i < size(); ++i) stream(0).wait(stream(i));
}

void ReplicaSet::lead_primary_after_error() noexcept {
  for (std::size_t i = 1; i < size(); ++i) try_or_log([&] { stream(0).wait(stream(i)); });
}

}  // namespace ddp
