#include "ddp/libtorch/sharded_optimizer.hpp"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <typeinfo>
#include <utility>

#include "core/hash.hpp"
#include "ddp/core/text.hpp"
#include "ddp/libtorch/optimizers.hpp"
#include "libtorch/ddp/engine.hpp"

namespace ddp::libtorch {
namespace {

namespace optim = torch::optim;

// The same on ranks that have the same options, whatever their type.
std::string describe(optim::Optimizer const& optimizer) {
  std::string all;
  for (auto const& group : optimizer.param_groups()) {
    torch::serialize::OutputArchive archive;
    group.options().serialize(archive);
    Classic<std::ostringstream> bytes;
    archive.save_to(bytes);
    all += text(all.empty() ? "" : ", ", "learning rate ", group.options().get_lr(), " (options ", std::hex,
                StableHash().add(std::string_view(bytes.str())).value(), ')');
  }
  return all;
}

}  // namespace

class ShardedOptimizer::Impl {
 public:
  Impl(std::shared_ptr<DistributedDataParallel::Engine> engine, Factory const& make, Groups const& groups,
       Update update)
      : engine_(std::move(engine)), in_backward_(update == Update::in_backward) {
    static_cast<void>(engine_->runtime().slices());  // throws on every rank
    std::exception_ptr error;
    std::string said;
    try {
      build(make, groups);
      said = options();
    } catch (std::exception const& refused) {
      error = std::current_exception();
      said = text('-', refused.what());
    }
    compare(said, error);
    if (!in_backward_) return;
    make_state();
    engine_->on_slice_ready([this](std::size_t slice) { update_slice(slice); });
  }
  ~Impl() {
    if (!in_backward_) return;
    try {
      engine_->on_slice_ready({});
    } catch (std::exception const&) {  // in the middle of a step that failed
    }
  }
  Impl(Impl const&) = delete;
  Impl& operator=(Impl const&) = delete;

  void step() {
    std::uint64_t const every = engine_->verify_every();
    std::uint64_t const steps = engine_->runtime().steps();
    if (every > 0 && steps % every == 0 && std::exchange(compared_, steps) != steps) {
      compare(options(), nullptr);
    }
    if (in_backward_) return;
    engine_->update_slices([this](std::size_t slice) {
      if (fused_ != nullptr) {
        update_slice(slice);
      } else if (slice == 0) {
        update_all();
      }
    });
    masters_are_new();
  }
  /// What has changed parameters until now is in their masters.
  void masters_are_new() {
    for (auto& slice : slices_) {
      for (Updated& each : slice) each.version = version_of(each.piece.parameter);
    }
  }
  void zero_grad(bool set_to_none) {
    for (ModuleTensor const& each : engine_->trained()) {
      at::Tensor& gradient = each.tensor.mutable_grad();
      if (!gradient.defined()) continue;
      set_to_none ? gradient.reset() : static_cast<void>(gradient.detach_().zero_());
    }
  }
  [[nodiscard]] optim::Optimizer& inner() noexcept { return *inner_; }
  [[nodiscard]] std::vector<Trained> parameters() const {
    std::vector<Trained> all;
    for (std::size_t p = 0; p < engine_->trained().size(); ++p) {
      ModuleTensor const& each = engine_->trained()[p];
      all.push_back({each.name, each.tensor, groups_[p]});
    }
    return all;
  }
  [[nodiscard]] std::vector<Piece> pieces() const {
    std::vector<Piece> all;
    for (auto const& slice : slices_) {
      for (Updated const& each : slice) {
        all.push_back({each.piece.index, each.piece.offset, each.tensor, each.has_master()});
      }
    }
    return all;
  }

 private:
  struct Updated {
    DistributedDataParallel::Engine::Piece piece;
    at::Tensor tensor;         // what the optimizer has: the values, or their masters
    std::int64_t version = 0;  // of the parameter, when these were equal
    [[nodiscard]] bool has_master() const { return tensor.scalar_type() != piece.values.scalar_type(); }
  };

  void build(Factory const& make, Groups const& groups) {
    std::map<at::TensorImpl const*, std::size_t> group_of;
    if (groups.empty()) {
      for (ModuleTensor const& each : engine_->trained()) group_of[each.tensor.unsafeGetTensorImpl()] = 0;
    }
    for (std::size_t g = 0; g < groups.size(); ++g) {
      for (at::Tensor const& parameter : groups[g].params()) {
        bool const is_new = group_of.emplace(parameter.unsafeGetTensorImpl(), g).second;
        require(is_new, [&] {
          return text("ShardedOptimizer: a parameter of shape ", parameter.sizes(),
                      " stands twice in the groups");
        });
      }
    }
    std::set<at::TensorImpl const*> trained;
    for (ModuleTensor const& each : engine_->trained()) {
      trained.insert(each.tensor.unsafeGetTensorImpl());
      require(group_of.contains(each.tensor.unsafeGetTensorImpl()), [&] {
        return text("ShardedOptimizer: parameter \"", each.name,
                    "\" is in no group: every one that is trained "
                    "needs one");
      });
    }
    for (auto const& [parameter, group] : group_of) {
      require(trained.contains(parameter), [&] {
        return text("ShardedOptimizer: group ", group,
                    " has a tensor that is no trained parameter of the "
                    "wrapped module");
      });
    }
    for (ModuleTensor const& each : engine_->trained()) {
      groups_.push_back(group_of.at(each.tensor.unsafeGetTensorImpl()));
    }
    std::vector<std::vector<at::Tensor>> lists(std::max<std::size_t>(groups.size(), 1));
    at::NoGradGuard const no_graph;
    for (auto& pieces : engine_->pieces()) {
      auto& slice = slices_.emplace_back();
      for (auto& piece : pieces) {
        bool const is_narrow = piece.values.element_size() == 2;
        at::Tensor const tensor = is_narrow ? piece.values.to(at::kFloat) : piece.values;
        lists[groups_[piece.index]].push_back(tensor);
        std::int64_t const version = version_of(piece.parameter);
        slice.push_back({std::move(piece), tensor, version});
      }
    }
    give(make, groups, lists);
  }

  void give(Factory const& make, Groups const& groups, std::vector<std::vector<at::Tensor>> const& lists) {
    Groups of_pieces;
    for (std::size_t g = 0; g < lists.size(); ++g) {
      of_pieces.emplace_back(lists[g]);
      if (g < groups.size() && groups[g].has_options()) {
        of_pieces.back().set_options(optim::OptimizerParamGroup(groups[g]).options().clone());
      }
    }
    inner_ = make(std::move(of_pieces));
    require(inner_ != nullptr,
            "ShardedOptimizer: the factory returned null: return the optimizer that it made");
    std::multiset<at::TensorImpl const*> given, kept;
    for (auto const& list : lists) {
      for (at::Tensor const& tensor : list) given.insert(tensor.unsafeGetTensorImpl());
    }
    for (auto const& group : inner_->param_groups()) {
      for (at::Tensor const& tensor : group.params()) kept.insert(tensor.unsafeGetTensorImpl());
    }
    require(given == kept, [&] {
      return text("ShardedOptimizer: the factory was given ", given.size(),
                  " tensors, and its optimizer has ", kept.size(),
                  ", not the same: give all of them to the optimizer, and no others");
    });
    fused_ = dynamic_cast<FusedOptimizer*>(inner_.get());
    require(
        fused_ != nullptr || !in_backward_,
        "ShardedOptimizer with Update::in_backward: the optimizer must be a ddp::libtorch::FusedOptimizer "
        "(AdamW, SGD), which can update some of its tensors");
  }

  // In the first backward pass, between activations that come and go, it would leave gaps.
  void make_state() const {
    auto* const adamw = dynamic_cast<AdamW*>(inner_.get());
    if (adamw == nullptr) return;
    for (auto const& slice : slices_) {
      for (Updated const& each : slice) static_cast<void>(adamw->state_of(each.tensor));
    }
  }

  [[nodiscard]] std::string options() const {
    optim::Optimizer const& built = *inner_;
    return text('+', describe(built), in_backward_ ? ", updated in the backward pass" : "", ", ",
                typeid(built).name(), ", groups ", std::hex, StableHash().add(join(groups_, " ")).value());
  }
  void compare(std::string const& said, std::exception_ptr const& error) const {
    World const& world = engine_->world();
    auto const all = world.control().all_gather(World(world).next_name("sharded"), said, world.members(),
                                                Deadline::after(world.options().timeout));
    if (error) std::rethrow_exception(error);
    for (std::size_t r = 0; r < all.size(); ++r) {
      if (all[r] == all[0] && all[r].starts_with('+')) continue;
      throw CommError(
          ErrorCode::mismatch,
          all[r].starts_with('-')
              ? text("rank ", r, " cannot make its optimizer, so no rank does: ", all[r].substr(1))
              : text("ranks have other options of their optimizers: rank 0 has ", all[0].substr(1), ", rank ",
                     r, ' ', all[r].substr(1), "; give every rank the same"));
    }
  }

  // As torch::optim does, leaves out parameters without a gradient. In the backward pass all count.
  void take_gradient(Updated& each) const {
    if (each.has_master() && version_of(each.piece.parameter) != each.version) {
      each.tensor.copy_(each.piece.values);
      each.version = version_of(each.piece.parameter);
    }
    bool const has = in_backward_ || each.piece.parameter.grad().defined();
    at::Tensor const& gradient = each.piece.gradient;
    each.tensor.mutable_grad() = !has ? at::Tensor() : each.has_master() ? gradient.to(at::kFloat) : gradient;
  }
  static void give_values(Updated& each) {
    if (!each.has_master() || !each.tensor.grad().defined()) return;
    each.piece.values.copy_(each.tensor);
    each.tensor.mutable_grad().reset();
  }

  void update_slice(std::size_t slice) {
    std::vector<at::Tensor> tensors;
    for (Updated& each : slices_[slice]) {
      take_gradient(each);
      tensors.push_back(each.tensor);
    }
    fused_->update(tensors);
    for (Updated& each : slices_[slice]) give_values(each);
  }
  void update_all() {
    for (auto& slice : slices_) std::ranges::for_each(slice, [this](Updated& each) { take_gradient(each); });
    inner_->step();
    for (auto& slice : slices_) std::ranges::for_each(slice, give_values);
  }

  std::shared_ptr<DistributedDataParallel::Engine> engine_;
  bool in_backward_;
  std::uint64_t compared_ = 0;       // the step behind which options were compared last
  std::vector<std::size_t> groups_;  // by parameter
  std::vector<std::vector<Updated>> slices_;
  std::unique_ptr<optim::Optimizer> inner_;
  FusedOptimizer* fused_ = nullptr;  // inner_, if it can update some of its tensors
};

ShardedOptimizer::ShardedOptimizer(DistributedDataParallel& model, Factory const& make, Groups const& groups,
                                   Update update)
    : impl_(std::make_unique<Impl>(model.engine_, make, groups, update)) {}
ShardedOptimizer::~ShardedOptimizer() = default;
void ShardedOptimizer::step() { impl_->step(); }
void ShardedOptimizer::zero_grad(bool set_to_none) { impl_->zero_grad(set_to_none); }
torch::optim::Optimizer& ShardedOptimizer::inner() noexcept { return impl_->inner(); }
void ShardedOptimizer::masters_are_new() { impl_->masters_are_new(); }
std::vector<ShardedOptimizer::Trained> ShardedOptimizer::parameters() const { return impl_->parameters(); }
std::vector<ShardedOptimizer::Piece> ShardedOptimizer::pieces() const { return impl_->pieces(); }

}  // namespace ddp::libtorch
