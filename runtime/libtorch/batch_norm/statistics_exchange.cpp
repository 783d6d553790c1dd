#include "libtorch/batch_norm/statistics_exchange.hpp"

#include <ATen/Functions.h>
#include <torch/nn/module.h>

#include <exception>
#include <map>
#include <vector>

#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"
#include "ddp/libtorch/distributed_data_parallel.hpp"
#include "libtorch/tensor_view.hpp"

namespace ddp::libtorch {
namespace {

bool is_well(Communicator const* communicator) {
  try {
    if (communicator != nullptr) communicator->check_health();
    return true;
  } catch (CommError const&) {
    return false;
  }
}

}  // namespace

StatisticsExchange::StatisticsExchange(World world)
    : world_(std::move(world)), streams_(GpuStreams::of(world_.device())) {
  if (world_.size() == 1) return;
  if (world_.device().kind == DeviceKind::cuda) {
    require_one_nccl();
    own_stream_ = world_.make_comm_stream(world_.device());
  }
  connect();
}

void StatisticsExchange::connect() {
  membership_ = world_.membership();
  communicator_ = world_.communicator().split(all_ranks(world_.size()), world_.next_name("sync_batch_norm"));
}

std::shared_ptr<StatisticsExchange> StatisticsExchange::of(World const& world) {
  // Modules are made one by one, and find the last exchange of their World here, by its communicator, which
  // is equal for all copies of the World.
  static std::mutex mutex;
  static std::map<Communicator const*, std::weak_ptr<StatisticsExchange>> living;
  std::shared_ptr<StatisticsExchange> found;  // destroyed after the lock
  {
    std::lock_guard const lock(mutex);
    std::erase_if(living, [](auto const& entry) { return entry.second.expired(); });
    if (auto const entry = living.find(&world.communicator()); entry != living.end())
      found = entry->second.lock();
  }
  if (found && is_well(found->communicator_.get())) return found;
  auto made = std::make_shared<StatisticsExchange>(world);  // without the lock: other ranks may be threads
  std::lock_guard const lock(mutex);
  living[&world.communicator()] = made;
  return made;
}

std::vector<SyncBatchNormImpl const*> StatisticsExchange::norms_of(torch::nn::Module const& module) {
  std::vector<SyncBatchNormImpl const*> norms;
  auto const look = [&](torch::nn::Module const& part) {
    if (auto const* const norm = part.as<SyncBatchNormImpl>()) norms.push_back(norm);
  };
  look(module);  // among its modules() it is only where a shared_ptr owns it
  for (auto const& part : module.modules(/*include_self=*/false)) look(*part);
  return norms;
}

void StatisticsExchange::abort_those_of(torch::nn::Module const& module, std::string const& reason) noexcept {
  try {
    for (SyncBatchNormImpl const* const norm : norms_of(module)) {
      if (norm->exchange_->communicator_) norm->exchange_->communicator_->abort(reason);
    }
  } catch (std::exception const& error) {
    log(LogLevel::error, text("other ranks are not told that ", reason, ": ", error.what()));
  }
}

void StatisticsExchange::require_on_device(at::Tensor const& input) const {
  c10::Device const own = device(world_);
  require(input.device() == own, [&] {
    return text("SyncBatchNorm: expected an input on ", own.str(), ", this rank's device, found one on ",
                input.device().str(), ": move module and samples to ddp::libtorch::device(world)");
  });
}

void StatisticsExchange::tell_names(torch::nn::Module const& module) {
  for (auto const& part : module.named_modules("", /*include_self=*/false)) {
    if (auto* const norm = part.value()->as<SyncBatchNormImpl>()) norm->path_ = part.key();
  }
}

template <class Operation>
void StatisticsExchange::in_turn(char const* pass, std::string const& norm, Operation operation) try {
  std::lock_guard const lock(mutex_);
  if (membership_ != world_.membership()) connect();
  streams_->in_turn(own_stream_ ? *own_stream_ : world_.stream(), operation);
} catch (CommError const& error) {
  if (error.code() == ErrorCode::aborted) throw;  // the reason lies elsewhere
  throw CommError(error.failure(),
                  text("the ", pass, " pass of ", norm, " takes every rank, and failed: ", error.what(),
                       ". Where only some ranks run it (samples, validation), call eval() before and train() "
                       "behind it: then it sends nothing"));
}

at::Tensor StatisticsExchange::all_gather(at::Tensor const& mine, std::string const& norm) {
  at::Tensor all = at::empty({size(), mine.size(0)}, mine.options());
  TensorView const in = view_of(mine, world_.device(), "a SyncBatchNorm's statistics").value;
  TensorView const out = view_of(all, world_.device(), "the ranks' statistics").value;
  in_turn("forward", norm, [&](Stream& stream) { communicator_->all_gather(in, out, stream); });
  return all;
}

void StatisticsExchange::all_reduce(at::Tensor const& values, std::string const& norm) {
  TensorView const view = view_of(values, world_.device(), "a SyncBatchNorm's sums").value;
  in_turn("backward", norm,
          [&](Stream& stream) { communicator_->all_reduce(view, ReduceOp::sum(), stream); });
}

}  // namespace ddp::libtorch
