#include "ddp/libtorch/checkpoint.hpp"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <dlfcn.h>
#include <torch/nn/module.h>

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "ddp/core/text.hpp"
#include "libtorch/gpu_streams.hpp"
#include "libtorch/module_tensors.hpp"
#include "libtorch/optimizer_state.hpp"
#include "libtorch/tensor_view.hpp"

namespace ddp::libtorch {
namespace {

at::Tensor as_real(at::Tensor const& tensor) {
  return tensor.is_complex() ? at::view_as_real(tensor.detach()) : tensor.detach();
}

// PyTorch's wheels show functions of std::filesystem from an old libstdc++. Where they are found first,
// removing a folder calls a null pointer.
void require_own_filesystem() {
  auto* const function =
      static_cast<std::uintmax_t (*)(std::filesystem::path const&)>(&std::filesystem::remove_all);
  Dl_info place{};
  if (dladdr(reinterpret_cast<void*>(function), &place) == 0 || place.dli_fname == nullptr) return;
  // A program that was not built position-independent shows itself, whoever holds the function: that tells
  // nothing.
  std::string_view const file(place.dli_fname);
  std::string_view const name = file.substr(file.rfind('/') + 1);
  if (!name.starts_with("libtorch") || name.find(".so") == std::string_view::npos) return;
  throw Error(
      ErrorCode::unsupported,
      text("this program gets std::filesystem from ", file,
           ", whose copy of it crashes: link ddp::libtorch, or -lstdc++, before PyTorch's libraries"));
}

}  // namespace

class Checkpoint::Impl {
 public:
  Impl(World world, std::filesystem::path folder, torch::nn::Module& module,
       torch::optim::Optimizer* optimizer, Options options)
      : world_(std::move(world)), module_(module), optimizer_(optimizer), streams_(world_.device()) {
    require_own_filesystem();
    for (auto const& parameter : tensors_of(module_).trained) add_name(parameter);
    for (auto const& parameter : tensors_of(module_).frozen) add_name(parameter);
    if (optimizer_ != nullptr) make_state(*optimizer_, names_);
    collect();
    CheckpointTensors tensors;
    for (std::size_t m = 0; m < memory_.size(); ++m) {
      Saved const& saved = memory_[m];
      auto& list = m < model_size_ ? tensors.model : tensors.optimizer;
      list.push_back(
          {saved.name, view_of(saved.memory, world_.device(), text("\"", saved.name, "\"")).value});
    }
    checkpoint_ = std::make_unique<ddp::Checkpoint>(world_, std::move(folder), std::move(tensors), options);
  }

  std::optional<RestoredCheckpoint> restore() {
    auto restored = checkpoint_->restore();
    if (!restored) return restored;
    if (Stream* const stream = streams_.current()) stream->wait(world_.stream());
    at::NoGradGuard const no_graph;
    visit(
        [](Saved& saved, at::Tensor& tensor) {
          if (as_real(tensor).const_data_ptr() != saved.memory.const_data_ptr())
            as_real(tensor).copy_(saved.memory);
        },
        [](Saved& saved, std::int64_t& count) { count = saved.memory.item<std::int64_t>(); },
        [](Saved& saved, double, std::function<void(double)> const& set) {
          set(saved.memory.item<double>());
        });
    return restored;
  }

  void save(TrainingPosition const& position) {
    collect();
    if (Stream* const stream = streams_.current()) world_.stream().wait(*stream);
    checkpoint_->save(position);
  }
  void wait() { checkpoint_->wait(); }
  [[nodiscard]] std::string newest() const { return checkpoint_->newest(); }

 private:
  // What the runtime reads and writes: the tensor itself where that is row-major, and has not moved.
  struct Saved {
    std::string name;
    at::Tensor memory;
  };

  void add_name(ModuleTensor const& parameter) {
    names_.emplace(parameter.tensor.unsafeGetTensorImpl(), parameter.name);
  }

  // The entry after the last one, made if it is not there yet.
  Saved& entry(std::string const& name, at::Tensor const& like) {
    if (next_ == memory_.size()) {
      at::Tensor const values = as_real(like);
      memory_.push_back({name, values.is_contiguous() ? values : values.contiguous()});
    }
    Saved& saved = memory_[next_++];
    bool const same = saved.name == name && saved.memory.sizes() == as_real(like).sizes() &&
                      saved.memory.scalar_type() == as_real(like).scalar_type();
    if (!same) {
      throw Error(ErrorCode::invalid_state,
                  text("the checkpoint was made for \"", saved.name, "\" of shape ", saved.memory.sizes(),
                       ", and finds \"", name, "\" of shape ", as_real(like).sizes(),
                       " in its place: make a new Checkpoint when module or optimizer have changed"));
    }
    return saved;
  }

  template <class OnTensor, class OnCount, class OnNumber>
  void visit(OnTensor on_tensor, OnCount on_count, OnNumber on_number) {
    next_ = 0;
    ModuleTensors tensors = tensors_of(module_);
    auto const each = [&](ModuleTensor& tensor) {
      on_tensor(entry(tensor.name, tensor.tensor), tensor.tensor);
    };
    for (ModuleTensor& parameter : tensors.trained) each(parameter);
    for (ModuleTensor& parameter : tensors.frozen) each(parameter);
    for (ModuleBuffers& part : tensors.buffers) {
      for (ModuleTensor& buffer : part.buffers) each(buffer);
    }
    model_size_ = next_;
    if (optimizer_ == nullptr) return;
    visit_state(*optimizer_, names_,
                {.tensor = [&](std::string const& name,
                               at::Tensor& tensor) { on_tensor(entry(name, tensor), tensor); },
                 .count =
                     [&](std::string const& name, std::int64_t& count) {
                       on_count(entry(name, at::scalar_tensor(count, at::kLong)), count);
                     },
                 .number =
                     [&](std::string const& name, double number, std::function<void(double)> const& set) {
                       on_number(entry(name, at::scalar_tensor(number, at::kDouble)), number, set);
                     }});
  }

  // What is not the tensor itself gets its values.
  void collect() {
    at::NoGradGuard const no_graph;
    visit(
        [](Saved& saved, at::Tensor& tensor) {
          if (as_real(tensor).const_data_ptr() != saved.memory.const_data_ptr())
            saved.memory.copy_(as_real(tensor));
        },
        [](Saved& saved, std::int64_t& count) { saved.memory.fill_(count); },
        [](Saved& saved, double number, auto const&) { saved.memory.fill_(number); });
  }

  World world_;
  torch::nn::Module& module_;
  torch::optim::Optimizer* optimizer_;
  GpuStreams streams_;
  ParameterNames names_;
  std::vector<Saved> memory_;
  std::size_t next_ = 0;                         // of memory_, during a visit
  std::size_t model_size_ = 0;                   // the first of memory_ are the model's
  std::unique_ptr<ddp::Checkpoint> checkpoint_;  // goes before what it refers to
};

Checkpoint::Checkpoint(World world, std::filesystem::path folder, torch::nn::Module& module,
                       torch::optim::Optimizer* optimizer, Options options)
    : impl_(std::make_unique<Impl>(std::move(world), std::move(folder), module, optimizer, options)) {}
Checkpoint::~Checkpoint() = default;
Checkpoint::Checkpoint(Checkpoint&& other) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&& other) noexcept = default;

std::string Checkpoint::newest() const { return impl_->newest(); }
std::optional<RestoredCheckpoint> Checkpoint::restore() { return impl_->restore(); }
void Checkpoint::save(TrainingPosition const& position) { impl_->save(position); }
void Checkpoint::wait() { impl_->wait(); }

}  // namespace ddp::libtorch
