// A part of a model that DataParallel can replicate.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ddp/core/export.hpp"
#include "ddp/data_parallel/value.hpp"
#include "ddp/device/stream.hpp"
#include "ddp/reducer/parameter.hpp"

namespace DDP_EXPORT ddp {

/// Called with the index of a parameter, in parameters() of the module that got it, as soon as its gradient
/// is complete in the order of the module's stream. It may travel from then on: nobody writes it any more in
/// this pass.
using GradientReady = std::function<void(std::size_t parameter)>;

/// Parameters and buffers on one device, a forward pass, and a backward pass that the program writes: the
/// runtime owns no autograd.
///
/// A module's work is ordered on its stream: what it is given is there in that order, and what it returns
/// becomes ready in that order; the host need not wait. The memory of what it returns must stay until the
/// stream is through with it: a module writes the same memory in every step, or its last owner waits for the
/// stream.
///
/// One thread at a time; replicas of a module run in threads of their own.
class Module {
 public:
  /// On the stream's device. The stream must outlive the module and what it returned.
  explicit Module(Stream& stream);
  explicit Module(std::shared_ptr<Stream> stream);  ///< The same with a stream that it keeps.
  virtual ~Module() = default;
  Module(Module const&) = delete;
  Module& operator=(Module const&) = delete;

  [[nodiscard]] Stream& stream() const noexcept { return *stream_; }          ///< Its work is in order there.
  [[nodiscard]] Device device() const noexcept { return stream_->device(); }  ///< Where it computes.
  /// For who may outlive the module.
  [[nodiscard]] std::shared_ptr<Stream> const& shared_stream() const noexcept { return stream_; }

  /// All trainable tensors, those of children included, always in the same order: with `gradient` where the
  /// program keeps them. `bind_gradient`, if it is set, makes the module write gradients elsewhere from then
  /// on: a replica's go straight into the memory that they are sent from. The memory of values must stay
  /// where it is.
  [[nodiscard]] virtual std::vector<Parameter> parameters() = 0;
  /// All tensors that forward() needs or writes and nobody trains, those of children included.
  [[nodiscard]] virtual std::vector<NamedTensor> buffers() { return {}; }

  /// A module that another one is made of.
  struct Child {
    std::string name;          ///< in its parent
    Module* module = nullptr;  ///< belongs to the parent
  };
  /// The modules that this one is made of, always in the same order.
  [[nodiscard]] virtual std::vector<Child> children() { return {}; }

  /// The output for `input`, between the hooks of this module.
  Value forward(Value const& input);
  /// Adds the gradients of the last forward()'s output, of which `output_gradient` is the loss's gradient, to
  /// those of the parameters; calls `ready` as each is complete. Returns the gradient of the input, with the
  /// input's structure; nothing for what has none.
  Value backward(Value const& output_gradient, GradientReady const& ready = {});

  /// Shares `memory`, which gradients were bound to (Parameter::bind_gradient), in place of what it was given
  /// before; its children do likewise.
  void keep_gradient_memory(std::shared_ptr<void const> const& memory);

  /// A module of the same structure on another device, with gradients and streams of its own; its values are
  /// not those of this one until somebody copies them (replicate() does). Hooks are shared: those that are
  /// added later run there too. Throws Error(not_found) for a device that is not there.
  [[nodiscard]] std::shared_ptr<Module> clone_to(Device device);
  /// The same on a stream of that device.
  [[nodiscard]] std::shared_ptr<Module> clone_to(std::shared_ptr<Stream> stream);

  /// A copy of this module on another device, with its values; hooks are shared. Waits until it is there.
  /// Throws Error(not_found) for a device that is not there, unless soft placement finds another.
  [[nodiscard]] std::shared_ptr<Module> to(Device device);

  // Hooks run in the order in which they were added, each time with the module that it happens in: on a
  // replica that is the replica, in its thread, with its device current. Add and remove them while no pass
  // runs.

  /// May replace the input.
  using BeforeForward = std::function<void(Module& module, Value& input)>;
  /// May replace the output.
  using AfterForward = std::function<void(Module& module, Value const& input, Value& output)>;
  /// May replace the input's gradient. Those of parameters may be travelling already: only `backward()` of
  /// the module itself changes them.
  using AfterBackward =
      std::function<void(Module& module, Value const& output_gradient, Value& input_gradient)>;
  /// Names a hook of one module.
  enum class HookId : std::size_t {};
  HookId add_before_forward(BeforeForward hook);  ///< Runs in front of forward().
  HookId add_after_forward(AfterForward hook);    ///< Runs behind forward().
  HookId add_after_backward(AfterBackward hook);  ///< Runs behind backward().
  void remove_hook(HookId hook) noexcept;         ///< Does nothing if it is gone.

 protected:
  virtual Value do_forward(Value const& input) = 0;  ///< forward() without hooks.
  /// backward() without hooks; `ready` can be called.
  virtual Value do_backward(Value const& output_gradient, GradientReady const& ready) = 0;
  /// clone_to() without hooks. Runs with the stream's device current.
  [[nodiscard]] virtual std::shared_ptr<Module> do_clone(std::shared_ptr<Stream> stream) = 0;

 private:
  struct DDP_HIDDEN Hooks;
  void share_hooks(Module& original);
  std::shared_ptr<Stream> stream_;
  std::shared_ptr<Hooks> hooks_;
  std::shared_ptr<void const> gradient_memory_;
};

}  // namespace ddp
