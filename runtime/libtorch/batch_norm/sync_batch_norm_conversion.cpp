#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/moduledict.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "ddp/core/text.hpp"
#include "ddp/libtorch/sync_batch_norm.hpp"
#include "libtorch/ddp/gradient_hook.hpp"

namespace ddp::libtorch {

namespace nn = torch::nn;

class SyncBatchNormConversion {
 public:
  explicit SyncBatchNormConversion(World const& world) : world_(world) {}

  std::size_t convert(nn::Module& module) {
    check(module);
    visit(module);
    for (auto const& part : module.modules(/*include_self=*/false)) visit(*part);
    return made_.size();
  }

 private:
  using Made = std::shared_ptr<SyncBatchNormImpl>;

  static bool is_batch_norm(nn::Module const& module) {
    return module.as<nn::BatchNorm1dImpl>() != nullptr || module.as<nn::BatchNorm2dImpl>() != nullptr ||
           module.as<nn::BatchNorm3dImpl>() != nullptr;
  }
  static bool is_container(nn::Module const& module) {
    return module.as<nn::SequentialImpl>() != nullptr || module.as<nn::ModuleListImpl>() != nullptr ||
           module.as<nn::ModuleDictImpl>() != nullptr;
  }

  static void check(nn::Module const& module) {
    std::vector<std::string> held;
    auto const look_into = [&](nn::Module const& part, std::string const& prefix) {
      if (is_container(part)) return;
      for (auto const& child : part.named_children()) {
        if (is_batch_norm(*child.value())) held.push_back(text('"', prefix, child.key(), '"'));
      }
    };
    if (is_batch_norm(module)) held.emplace_back("the module itself");
    look_into(module, "");
    for (auto const& part : module.named_modules("", /*include_self=*/false))
      look_into(*part.value(), part.key() + ".");
    if (!held.empty()) {
      throw Error(ErrorCode::unsupported,
                  text("convert_sync_batchnorm() replaces what Sequential, ModuleList and ModuleDict hold; "
                       "found, held by its type in the program's own code: ",
                       join(held, ", "),
                       ". Write ddp::libtorch::SyncBatchNorm(world, channels) there in place of BatchNorm. "
                       "Nothing was changed"));
    }
    for (auto const& parameter : module.named_parameters()) {
      if (!parameter.value().defined() || GradientHook::of(parameter.value()) == nullptr) continue;
      throw Error(ErrorCode::invalid_state,
                  text("parameter \"", parameter.key(),
                       "\" belongs to a DistributedDataParallel: call convert_sync_batchnorm() before the "
                       "module is wrapped"));
    }
  }

  void visit(nn::Module& container) {
    if (!is_container(container)) return;
    for (auto const& child : container.named_children()) {
      if (Made const made = replacement(*child.value())) container.replace_module(child.key(), made);
    }
    if (auto* const sequential = container.as<nn::SequentialImpl>()) {
      for (nn::AnyModule& any : *sequential) {
        if (Made const made = replacement(*any.ptr())) any = nn::AnyModule(made);
      }
    } else if (auto* const list = container.as<nn::ModuleListImpl>()) {
      for (auto& held : *list) replace(held);
    } else if (auto* const dictionary = container.as<nn::ModuleDictImpl>()) {
      for (auto& item : *dictionary) replace(item.value());
    }
  }

  void replace(std::shared_ptr<nn::Module>& held) {
    if (Made const made = replacement(*held)) held = made;
  }

  // Null for a module that is no batch normalisation; the same replacement for the same module.
  Made replacement(nn::Module const& module) {
    if (auto const* const norm = module.as<nn::BatchNorm1dImpl>()) return replacement_of(*norm);
    if (auto const* const norm = module.as<nn::BatchNorm2dImpl>()) return replacement_of(*norm);
    if (auto const* const norm = module.as<nn::BatchNorm3dImpl>()) return replacement_of(*norm);
    return nullptr;
  }

  template <class BatchNorm>
  Made replacement_of(BatchNorm const& norm) {
    Made& made = made_[&norm];
    if (made) return made;
    made = std::make_shared<SyncBatchNormImpl>(world_, norm.options);
    made->train(norm.is_training());
    if (norm.weight.defined()) {
      made->parameters_["weight"] = made->weight = norm.weight;
      made->parameters_["bias"] = made->bias = norm.bias;
    }
    if (norm.running_mean.defined()) {  // of a buffer PyTorch shows its memory only
      made->running_mean.set_data(norm.running_mean);
      made->running_var.set_data(norm.running_var);
      made->num_batches_tracked.set_data(norm.num_batches_tracked);
    }
    return made;
  }

  World const& world_;
  std::unordered_map<nn::Module const*, Made> made_;
};

std::size_t convert_sync_batchnorm(World const& world, torch::nn::Module& module) {
  return SyncBatchNormConversion(world).convert(module);
}

}  // namespace ddp::libtorch
