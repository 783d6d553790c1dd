#include "libtorch/replicas/replica_copies.hpp"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/functions/tensor.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <mutex>
#include <typeinfo>
#include <unordered_map>
#include <utility>

#include "ddp/core/error.hpp"
#include "ddp/core/text.hpp"
#include "libtorch/autograd_nodes.hpp"
#include "libtorch/tensor_view.hpp"

namespace ddp::libtorch {
namespace {

// Above this a tensor costs more to pack than a copy of its own takes to begin.
constexpr std::size_t kLargeBytes = std::size_t{1} << 20;

struct Named {
  char const* kind;
  std::string name;
  at::Tensor tensor;
};

// A tied one under each of its names.
std::vector<Named> tensors_by_name(torch::nn::Module const& module) {
  std::vector<Named> all;
  for (auto& each : module.named_parameters()) all.push_back({"parameter", each.key(), each.value()});
  for (auto& each : module.named_buffers()) all.push_back({"buffer", each.key(), each.value()});
  return all;
}

// A clone initialises its layers before it gets their values. The program's random numbers must not depend on
// how many replicas there are.
class KeepRandomState {
 public:
  KeepRandomState() : generator_(at::globalContext().defaultGenerator(at::kCPU)) {
    std::lock_guard const lock(generator_.mutex());
    state_ = generator_.get_state();
  }
  ~KeepRandomState() {
    std::lock_guard const lock(generator_.mutex());
    generator_.set_state(state_);
  }
  KeepRandomState(KeepRandomState const&) = delete;
  KeepRandomState& operator=(KeepRandomState const&) = delete;

 private:
  at::Generator generator_;
  at::Tensor state_;
};

[[noreturn]] void refuse_clone(torch::nn::Module const& module, std::string const& why) {
  throw Error(
      ErrorCode::unsupported,
      text("DataParallel needs replicas of ", module.name(), ", and ", why,
           ". Derive the module from torch::nn::Cloneable<…>, and register its parameters, buffers and "
           "submodules in reset(), which its constructor calls"));
}

// The module, then its parts, in the same order for every replica.
std::vector<torch::nn::Module*> parts_of(torch::nn::Module& module) {
  std::vector<torch::nn::Module*> parts{&module};
  for (auto const& part : module.modules(/*include_self=*/false)) parts.push_back(part.get());
  return parts;
}

}  // namespace

ReplicaCopies::ReplicaCopies(std::shared_ptr<torch::nn::Module> module, std::vector<Device> devices,
                             std::vector<c10::Device> places)
    : replicas_{std::move(module)}, devices_(std::move(devices)), places_(std::move(places)) {
  fit();
}

void ReplicaCopies::fit() {
  auto now = checked_forms();
  if (forms_ && now == *forms_) return;
  forms_.reset();  // until all are made
  make();
  forms_ = std::move(now);
}

std::vector<ReplicaCopies::Form> ReplicaCopies::checked_forms() const {
  std::vector<Form> forms;
  for (Named const& each : tensors_by_name(*replicas_[0])) {
    at::Tensor const& tensor = each.tensor;
    c10::Device const found = tensor.device();
    require(found == places_[0], [&] {
      bool const listed = std::find(places_.begin(), places_.end(), found) != places_.end();
      return text("module must have its parameters and buffers on device ", devices_[0],
                  " (device_ids[0], which PyTorch calls ", places_[0].str(), ") but found ", each.kind, " \"",
                  each.name, "\" on PyTorch's device ", found.str(), "; ",
                  listed ? "put that first in device_ids, or " : "its device is not among device_ids: ",
                  "call to(torch::Device(\"", places_[0].str(), "\")) of the module");
    });
    if (tensor.layout() != at::kStrided) {
      throw Error(ErrorCode::unsupported, text("DataParallel cannot copy ", each.kind, " \"", each.name,
                                               "\" to replicas: it has PyTorch's layout ", tensor.layout(),
                                               ", expected a dense tensor with strides"));
    }
    forms.push_back({tensor.unsafeGetTensorImpl(), tensor.sizes().vec(), tensor.strides().vec(),
                     tensor.scalar_type(), tensor.requires_grad()});
  }
  return forms;
}

// ---- making them

void ReplicaCopies::make() {
  replicas_.resize(1);
  if (places_.size() > 1) {
    // Replicas made in a pass in inference mode must also serve the next pass.
    c10::InferenceMode const off(false);
    at::NoGradGuard const no_graph;
    KeepRandomState const keep;
    for (std::size_t r = 1; r < places_.size(); ++r) replicas_.push_back(clone(places_[r], devices_[r]));
  }
  connect_slots();
  pack_slots();
}

std::shared_ptr<torch::nn::Module> ReplicaCopies::clone(c10::Device place, Device device) const {
  torch::nn::Module const& module = *replicas_[0];
  std::shared_ptr<torch::nn::Module> copy;
  try {
    copy = module.clone(place);
  } catch (c10::OutOfMemoryError const& full) {
    throw Error(ErrorCode::out_of_memory,
                text("no memory for a replica on ", device, ": ", full.what_without_backtrace()));
  } catch (c10::Error const& refused) {
    refuse_clone(module, text("its clone() ends with: ", refused.what_without_backtrace()));
  }
  torch::nn::Module const* const made = copy.get();
  if (made == nullptr || typeid(*made) != typeid(module)) {
    refuse_clone(module, text("its clone() makes ", made == nullptr ? "nothing" : copy->name()));
  }
  return copy;
}

void ReplicaCopies::connect_slots() {
  slots_.clear();
  auto const own = tensors_by_name(*replicas_[0]);
  for (Named const& each : own) {
    slots_.push_back({each.tensor, {}, std::vector<std::int64_t>(replicas_.size() - 1, -1)});
  }
  for (std::size_t r = 1; r < replicas_.size(); ++r) {
    auto const others = tensors_by_name(*replicas_[r]);
    if (others.size() != own.size()) {
      refuse_clone(*replicas_[0],
                   text("its clone() has ", others.size(), " parameters and buffers, it has ", own.size()));
    }
    std::unordered_map<c10::TensorImpl const*, std::size_t> seen;
    for (std::size_t s = 0; s < own.size(); ++s) {
      at::Tensor other = others[s].tensor;
      if (others[s].name != own[s].name || other.sizes() != own[s].tensor.sizes() ||
          other.scalar_type() != own[s].tensor.scalar_type() || other.device() != places_[r]) {
        refuse_clone(*replicas_[0], text("its clone() has ", others[s].kind, " \"", others[s].name, "\", ",
                                         c10::str(other.toString(), other.sizes(), " on ", other.device()),
                                         " where it has \"", own[s].name, "\", ",
                                         c10::str(own[s].tensor.toString(), own[s].tensor.sizes())));
      }
      auto const [tied, fresh] = seen.emplace(other.unsafeGetTensorImpl(), s);
      if (!fresh && !own[tied->second].tensor.is_same(own[s].tensor)) {
        refuse_clone(*replicas_[0], text("its clone() ties \"", own[tied->second].name, "\" and \"",
                                         own[s].name, "\", which are two tensors in the module"));
      }
      if (other.is_leaf()) other.requires_grad_(false);  // set_gradient_edges() decides
      slots_[s].others.push_back(std::move(other));
    }
  }
}

void ReplicaCopies::pack_slots() {
  large_.clear();
  packs_.clear();
  for (std::size_t s = 0; s < slots_.size(); ++s) {
    at::Tensor const& own = slots_[s].own;
    if (own.nbytes() >= kLargeBytes) {
      large_.push_back(s);
      continue;
    }
    Pack& pack = packs_[own.scalar_type()];
    pack.slots.push_back(s);
    pack.sizes.push_back(own.numel());
  }
}

// ---- before each pass

void ReplicaCopies::refresh(std::size_t count) {
  fit();
  follow_mode(count);
  copy_values(count);
  set_gradient_edges();
}

void ReplicaCopies::follow_mode(std::size_t count) const {
  auto const own = parts_of(*replicas_[0]);
  for (std::size_t r = 1; r < count; ++r) {
    auto const others = parts_of(*replicas_[r]);
    for (std::size_t p = 0; p < std::min(own.size(), others.size()); ++p) {
      if (own[p]->is_training() != others[p]->is_training()) others[p]->train(own[p]->is_training());
    }
  }
}

// Always copies all of them: a write through a pointer, as to batch norm's statistics, cannot be noticed.
void ReplicaCopies::copy_values(std::size_t count) {
  c10::InferenceMode const off(false);
  at::NoGradGuard const no_graph;
  std::map<at::ScalarType, at::Tensor> packed;
  for (std::size_t r = 1; r < count; ++r) copy_to(r, packed);
}

// PyTorch's copies between GPUs wait for both devices' current streams, and both wait for the copy: it is in
// order with what the last pass did on the replica and with what the next one does. Values are written
// without counting the version up, so that the graph of an earlier pass still accepts what it saved. If the
// module's own value has changed since, its counter shows that, and backward() of that graph fails as it does
// without replicas.
void ReplicaCopies::copy_to(std::size_t replica, std::map<at::ScalarType, at::Tensor>& packed) {
  auto const target = [&](std::size_t s) { return slots_[s].others[replica - 1].variable_data(); };
  for (std::size_t const s : large_) target(s).copy_(slots_[s].own, /*non_blocking=*/true);
  for (auto const& [type, pack] : packs_) {
    at::Tensor& whole = packed[type];
    if (!whole.defined()) {
      std::vector<at::Tensor> flat;
      for (std::size_t const s : pack.slots) flat.push_back(slots_[s].own.detach().reshape({-1}));
      whole = at::cat(flat);
    }
    auto from = whole.to(places_[replica], /*non_blocking=*/true).split_with_sizes(pack.sizes);
    std::vector<at::Tensor> to;
    for (std::size_t i = 0; i < from.size(); ++i) {
      to.push_back(target(pack.slots[i]));
      from[i] = from[i].view(to[i].sizes());
    }
    at::_foreach_copy_(to, from);
  }
  for (Slot& slot : slots_) {
    std::int64_t const version = version_of(slot.own);
    if (std::exchange(slot.versions[replica - 1], version) != version) {
      torch::autograd::impl::bump_version(slot.others[replica - 1]);
    }
  }
}

// As if `own.to(device)` had made each value in this pass: autograd sums the gradients of all replicas in the
// parameter's accumulator. Replicas without a part get edges too: the graph of an earlier pass may have saved
// their parameters. First all release the accumulators of the last pass, which belong to its streams.
void ReplicaCopies::set_gradient_edges() {
  for (Slot const& slot : slots_) {
    for (at::Tensor const& other : slot.others) torch::autograd::impl::set_gradient_edge(other, {});
  }
  for (Slot const& slot : slots_) {
    if (!slot.own.requires_grad()) continue;
    torch::autograd::Edge const own = torch::autograd::impl::gradient_edge(slot.own);
    for (at::Tensor const& other : slot.others) {
      auto const copy = make_node<torch::autograd::CopyBackwards>();
      copy->set_next_edges({torch::autograd::Edge(), own});
      copy->src_options = slot.own.options();
      torch::autograd::set_history(other, copy);
    }
  }
}

}  // namespace ddp::libtorch
