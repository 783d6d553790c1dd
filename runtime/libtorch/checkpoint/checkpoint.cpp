#include "ddp/libtorch/checkpoint.hpp"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/core/Generator.h>
#include <ATen/core/grad_mode.h>
#include <dlfcn.h>
#include <torch/nn/module.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "ddp/core/text.hpp"
#include "libtorch/checkpoint/optimizer_state.hpp"
#include "libtorch/checkpoint/sharded_state.hpp"
#include "libtorch/gpu_streams.hpp"
#include "libtorch/module_tensors.hpp"
#include "libtorch/tensor_view.hpp"

namespace ddp::libtorch {
namespace {

// PyTorch's wheels export functions of std::filesystem from an old libstdc++. If the dynamic linker finds
// those first, removing a folder calls a null pointer.
void require_own_filesystem() {
  auto* const function =
      static_cast<std::uintmax_t (*)(std::filesystem::path const&)>(&std::filesystem::remove_all);
  Dl_info place{};
  if (dladdr(reinterpret_cast<void*>(function), &place) == 0 || place.dli_fname == nullptr) return;
  // For a program that was not built position-independent, dladdr() names the program, wherever the function
  // is.
  std::string_view const file(place.dli_fname);
  std::string_view const name = file.substr(file.rfind('/') + 1);
  if (!name.starts_with("libtorch") || name.find(".so") == std::string_view::npos) return;
  throw Error(
      ErrorCode::unsupported,
      text("this program gets std::filesystem from ", file,
           ", whose copy of it crashes: link ddp::libtorch, or -lstdc++, before PyTorch's libraries"));
}

// One of PyTorch's default generators of this rank.
class SavedGenerator {
 public:
  // `generator`: undefined without a GPU.
  SavedGenerator(char const* name, at::Generator generator)
      : name_(name),
        generator_(std::move(generator)),
        state_(generator_.defined() ? state() : at::full({kGpuBytes}, kNone, at::kByte)) {}
  [[nodiscard]] NamedTensor tensor() const { return {name_, view_of(state_, Device{}, name_).value}; }
  void collect() {
    if (generator_.defined()) state_.copy_(state());
  }
  // The checkpoint may be of a rank that had no such device.
  void put_back() {
    if (!generator_.defined() || state_.eq(kNone).all().item<bool>()) return;
    std::lock_guard const lock(generator_.mutex());
    generator_.set_state(state_.clone());
  }

 private:
  static constexpr std::uint8_t kNone = 255;  // no offset of a GPU's generator, a multiple of 4, ends with it
  static constexpr std::int64_t kGpuBytes = 16;  // seed and offset

  [[nodiscard]] at::Tensor state() {
    std::lock_guard const lock(generator_.mutex());
    return generator_.get_state();
  }

  char const* name_;
  at::Generator generator_;
  at::Tensor state_;
};

template <class Named>
void require_own_names(char const* what, std::vector<Named> const& all) {
  std::set<std::string> names;
  for (Named const& each : all) {
    require(names.insert(each.name).second, [&] {
      return text("Checkpoint: two ", what, " are called \"", each.name, "\": give each a name of its own");
    });
  }
}

}  // namespace

class Checkpoint::Impl {
 public:
  Impl(World world, std::filesystem::path folder, std::vector<NamedModule> modules,
       std::vector<NamedOptimizer> optimizers, Options options)
      : world_(std::move(world)),
        modules_(std::move(modules)),
        optimizers_(std::move(optimizers)),
        generators_{SavedGenerator("generator.cpu", at::globalContext().defaultGenerator(c10::kCPU)),
                    SavedGenerator("generator.cuda",
                                   world_.device().kind == DeviceKind::cuda
                                       ? at::globalContext().defaultGenerator(place_of(world_.device()))
                                       : at::Generator())},
        streams_(GpuStreams::of(world_.device())) {
    require_own_filesystem();
    require_own_names("modules", modules_);
    require_own_names("optimizers", optimizers_);
    for (auto const& [name, module] : modules_) {
      ModuleTensors const tensors = tensors_of(module);
      for (auto const& parameter : tensors.trained) add_name(name, parameter);
      for (auto const& parameter : tensors.frozen) add_name(name, parameter);
    }
    for (auto const& each : optimizers_) {
      if (each.optimizer != nullptr) make_state(*each.optimizer, names_);
      if (each.sharded != nullptr) sharded_.emplace_back(world_, each.name, *each.sharded, names_);
    }
    collect();
    CheckpointTensors tensors;
    for (SavedGenerator const& each : generators_) tensors.rank.push_back(each.tensor());
    for (std::size_t m = 0; m < memory_.size(); ++m) {
      Saved const& saved = memory_[m];
      auto& list = m < model_size_ ? tensors.model : tensors.optimizer;
      list.push_back(
          {saved.name, view_of(saved.memory, world_.device(), text("\"", saved.name, "\"")).value});
    }
    for (ShardedState const& each : sharded_) each.add_to(tensors);
    checkpoint_ = std::make_unique<ddp::Checkpoint>(world_, std::move(folder), std::move(tensors), options);
  }

  std::optional<RestoredCheckpoint> restore() {
    auto restored = checkpoint_->restore();
    if (!restored) return restored;
    if (Stream* const stream = streams_->current()) stream->wait(world_.stream());
    at::NoGradGuard const no_graph;
    visit([](Saved const& saved, at::Tensor const& now, SetNumber const& set) {
      if (set) return set(saved.memory);
      if (now.const_data_ptr() != saved.memory.const_data_ptr()) now.copy_(saved.memory);
    });
    for (auto const& [name, module] : modules_) {  // the runtime has written without PyTorch
      for (at::Tensor const& each : module.parameters()) each.unsafeGetTensorImpl()->bump_version();
    }
    for (ShardedState& each : sharded_) each.put_back();
    if (restored->rank_tensors) {
      for (SavedGenerator& each : generators_) each.put_back();
    }
    return restored;
  }

  void save(TrainingPosition const& position) {
    collect();
    for (ShardedState& each : sharded_) each.collect();
    if (Stream* const stream = streams_->current()) world_.stream().wait(*stream);
    checkpoint_->save(position);
  }
  void wait() { checkpoint_->wait(); }
  [[nodiscard]] std::string newest() const { return checkpoint_->newest(); }

 private:
  using SetNumber = std::function<void(at::Tensor const& value)>;
  // The memory that the runtime reads and writes: the tensor itself if it is row-major, and has not moved.
  struct Saved {
    std::string name;
    at::Tensor memory;
  };

  void add_name(std::string const& module, ModuleTensor const& parameter) {
    names_.emplace(parameter.tensor.unsafeGetTensorImpl(), inside(module, parameter.name));
  }

  // The entry after the last one, made if it is not there yet.
  Saved const& entry(std::string const& name, at::Tensor const& values) {
    if (next_ == memory_.size()) memory_.push_back({name, values.contiguous()});
    Saved const& saved = memory_[next_++];
    bool const same = saved.name == name && saved.memory.sizes() == values.sizes() &&
                      saved.memory.scalar_type() == values.scalar_type();
    if (!same) {
      throw Error(ErrorCode::invalid_state,
                  text("the checkpoint was made for \"", saved.name, "\" of shape ", saved.memory.sizes(),
                       ", and finds \"", name, "\" of shape ", values.sizes(),
                       " in its place: make a new Checkpoint when module or optimizer have changed"));
    }
    return saved;
  }

  // Calls use(saved, now, set) for all that is saved; `set`, if not empty, is a number's.
  template <class Use>
  void visit(Use use) {
    next_ = 0;
    for (auto const& [name, module] : modules_) {
      auto const each = [&, &module_name = name](ModuleTensor const& tensor) {
        at::Tensor const now = as_real(tensor.tensor);
        use(entry(inside(module_name, tensor.name), now), now, {});
      };
      ModuleTensors const tensors = tensors_of(module);
      for (ModuleTensor const& parameter : tensors.trained) each(parameter);
      for (ModuleTensor const& parameter : tensors.frozen) each(parameter);
      for (auto const& part : tensors.buffers) {
        for (ModuleTensor const& buffer : part) each(buffer);
      }
    }
    model_size_ = next_;
    for (NamedOptimizer const& of : optimizers_) {
      if (of.optimizer == nullptr) continue;
      visit_state(*of.optimizer, names_, [&](StatePart const& part) {
        at::Tensor const now = as_real(part.values);
        use(entry(inside(of.name, part.name), now), now, part.set);
      });
    }
  }

  // Copies values into memory that is not theirs.
  void collect() {
    at::NoGradGuard const no_graph;
    visit([](Saved const& saved, at::Tensor const& now, SetNumber const& /*set*/) {
      if (now.const_data_ptr() != saved.memory.const_data_ptr()) saved.memory.copy_(now);
    });
    for (SavedGenerator& each : generators_) each.collect();
  }

  World world_;
  std::vector<NamedModule> modules_;
  std::vector<NamedOptimizer> optimizers_;
  std::array<SavedGenerator, 2> generators_;
  std::unique_ptr<GpuStreams> streams_;
  ParameterNames names_;
  std::vector<ShardedState> sharded_;
  std::vector<Saved> memory_;
  std::size_t next_ = 0;                         // of memory_, during a visit
  std::size_t model_size_ = 0;                   // the first of memory_ are the model's
  std::unique_ptr<ddp::Checkpoint> checkpoint_;  // destroyed before what it refers to
};

Checkpoint::Checkpoint(World world, std::filesystem::path folder, torch::nn::Module& module,
                       torch::optim::Optimizer* optimizer, Options options)
    : Checkpoint(std::move(world), std::move(folder), {{"", module}},
                 optimizer == nullptr ? std::vector<NamedOptimizer>()
                                      : std::vector<NamedOptimizer>{{"", *optimizer}},
                 options) {}
Checkpoint::Checkpoint(World world, std::filesystem::path folder, torch::nn::Module& module,
                       ShardedOptimizer& optimizer, Options options)
    : Checkpoint(std::move(world), std::move(folder), {{"", module}}, {{"", optimizer}}, options) {}
Checkpoint::Checkpoint(World world, std::filesystem::path folder, std::vector<NamedModule> modules,
                       std::vector<NamedOptimizer> optimizers, Options options)
    : impl_(std::make_unique<Impl>(std::move(world), std::move(folder), std::move(modules),
                                   std::move(optimizers), options)) {}
Checkpoint::~Checkpoint() = default;
Checkpoint::Checkpoint(Checkpoint&& other) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&& other) noexcept = default;

std::string Checkpoint::newest() const { return impl_->newest(); }
std::optional<RestoredCheckpoint> Checkpoint::restore() { return impl_->restore(); }
void Checkpoint::save(TrainingPosition const& position) { impl_->save(position); }
void Checkpoint::wait() { impl_->wait(); }

}  // namespace ddp::libtorch
