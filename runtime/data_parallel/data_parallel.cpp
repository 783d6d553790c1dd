#include "ddp/data_parallel/data_parallel.hpp"

#include "data_parallel/engine.hpp"
#include "data_parallel/replicas/clone.hpp"
#include "data_parallel/replicas/device_choice.hpp"
#include "data_parallel/replicas/replica_devices.hpp"

namespace ddp {
namespace {

Module& checked(std::shared_ptr<Module> const& module) {
  require(module != nullptr, "DataParallel: a module is needed, found none");
  return *module;
}

}  // namespace

DataParallelModule::DataParallelModule(std::shared_ptr<Module> module, Options options)
    : Module(checked(module).shared_stream()),
      module_(std::move(module)),
      loss_(options.loss),
      dim_(options.dim) {
  std::vector<Device> devices = chosen_devices(options.device_ids);
  if (options.output_device) check_output_device(*options.output_device, devices);
  if (devices.empty()) {
    log_placements("", *module_);
    return;
  }
  check_devices(devices);
  check_module_device(*module_, devices);
  warn_of_imbalance(devices);
  engine_ = std::make_unique<Engine>(module_, std::move(devices), std::move(options));
  split_ = true;
}

DataParallelModule::~DataParallelModule() { leave_to_maker(engine_); }

Module& DataParallelModule::module() const noexcept { return *module_; }

std::span<Device const> DataParallelModule::device_ids() const noexcept {
  return engine_ ? engine_->replicas().threads().devices() : std::span<Device const>{};
}

std::vector<Parameter> DataParallelModule::parameters() { return module_->parameters(); }
std::vector<NamedTensor> DataParallelModule::buffers() { return module_->buffers(); }
std::vector<Module::Child> DataParallelModule::children() { return {{"module", module_.get()}}; }

void DataParallelModule::refresh() {
  if (splits()) engine_->refresh();
}

// Within a replica of another DataParallel it does not split, and neither do its clones: its GPUs are busy
// with the passes of the other replicas. backward() splits if forward() did.
bool DataParallelModule::splits() const noexcept { return engine_ != nullptr && !Engine::in_replica(); }

Value DataParallelModule::do_forward(Value const& input) {
  split_ = splits();
  if (split_) return engine_->forward(input, nullptr);
  alone_gradient_.reset();
  return module_->forward(input);
}

Value DataParallelModule::do_backward(Value const& output_gradient, GradientReady const& ready) {
  return split_ ? engine_->backward(&output_gradient, ready) : module_->backward(output_gradient, ready);
}

Value DataParallelModule::forward_loss(Value const& input, Value const& target) {
  require(static_cast<bool>(loss_), "forward_loss() needs DataParallelOptions::loss, found none");
  split_ = splits();
  if (split_) return engine_->forward(input, &target);
  alone_gradient_.reset();
  auto rows = extent_of(input, dim_, "input");
  if (!rows) rows = extent_of(target, dim_, "target");
  ReplicaShare const whole{0, rows.value_or(0), rows.value_or(0)};
  ReplicaLoss loss = loss_(*module_, module_->forward(input), target, whole);
  alone_gradient_ = std::move(loss.output_gradient);
  return std::move(loss.loss);
}

Value DataParallelModule::backward_loss(GradientReady const& ready) {
  if (split_) return engine_->backward(nullptr, ready);
  if (!alone_gradient_) refuse_backward_loss();
  return module_->backward(*alone_gradient_, ready);
}

std::shared_ptr<Module> DataParallelModule::do_clone(std::shared_ptr<Stream> stream) {
  struct Alone final : DataParallelModule {
    Alone(std::shared_ptr<Module> module, DataParallelModule const& original)
        : DataParallelModule(
              std::move(module),
              {.device_ids = std::vector<Device>{}, .dim = original.dim_, .loss = original.loss_}) {}
  };
  return std::make_shared<Alone>(module_->clone_to(std::move(stream)), *this);
}

Value data_parallel(std::shared_ptr<Module> module, Value const& input, DataParallelOptions options) {
  DataParallelModule parallel(std::move(module), std::move(options));
  return parallel.forward(input);
}

}  // namespace ddp
