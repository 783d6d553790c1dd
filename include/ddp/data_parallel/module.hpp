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
/// is complete in the order of the module's stream. It may be sent from then on: nobody may write it again in
/// this pass.
using GradientReady = std::function<void(std::size_t parameter)>;

/// Parameters and buffers on one device, a forward pass, and a backward pass that the program writes: the
/// runtime has no autograd.
///
/// A module's work is ordered on its stream: inputs are ready in that order, and so are outputs; the host
/// need not wait. The memory of an output must stay until the stream has finished with it: either the module
/// writes the same memory in every step, or the output's last owner waits for the stream.
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

  [[nodiscard]] Stream& stream() const noexcept { return *stream_; }  ///< The stream that orders its work.
  [[nodiscard]] Device device() const noexcept { return stream_->device(); }  ///< Where it computes.
  /// The same, shared: for users that may outlive the module.
  [[nodiscard]] std::shared_ptr<Stream> const& shared_stream() const noexcept { return stream_; }

  /// All trainable tensors, including those of children, always in the same order; with `gradient` if the
  /// program keeps the gradients. `bind_gradient`, if set, makes the module write gradients elsewhere from
  /// then on: a replica writes them straight into the memory from which they are sent. The memory of values
  /// must stay where it is.
  [[nodiscard]] virtual std::vector<Parameter> parameters() = 0;
  /// All tensors that forward() reads or writes and nobody trains, including those of children.
  [[nodiscard]] virtual std::vector<NamedTensor> buffers() { return {}; }

  /// A part of a module that is a module itself.
  struct Child {
    std::string name;          ///< in its parent
    Module* module = nullptr;  ///< belongs to the parent
  };
  /// The modules that this one is made of, always in the same order.
  [[nodiscard]] virtual std::vector<Child> children() { return {}; }

  /// The output for `input`. Runs the hooks of this module before and after.
  Value forward(Value const& input);
  /// The backward pass of the last forward(). `output_gradient` is the loss's gradient with respect to its
  /// output. Adds to the gradients of the parameters, and calls `ready` as each is complete. Returns the
  /// gradient of the input, with the input's structure; nothing for parts that have none.
  Value backward(Value const& output_gradient, GradientReady const& ready = {});

  /// Shares ownership of `memory`, to which gradients were bound (Parameter::bind_gradient), in place of
  /// earlier memory; its children do too.
  void keep_gradient_memory(std::shared_ptr<void const> const& memory);

  /// A module of the same structure on another device, with gradients and streams of its own. Values are not
  /// copied: replicate() does that. Hooks are shared, including those that are added later. Throws
  /// Error(not_found) for a device that is not there.
  [[nodiscard]] std::shared_ptr<Module> clone_to(Device device);
  /// The same on a stream of that device.
  [[nodiscard]] std::shared_ptr<Module> clone_to(std::shared_ptr<Stream> stream);

  /// A copy of this module on another device, with its values; hooks are shared. Waits until the values are
  /// there. Throws Error(not_found) for a device that is not there, unless soft placement finds another.
  [[nodiscard]] std::shared_ptr<Module> to(Device device);

  // Hooks run in the order in which they were added. Each gets the module in which it runs: on a replica that
  // is the replica, in its thread, with its device current. Add hooks only while no pass runs.

  /// May replace the input.
  using BeforeForward = std::function<void(Module& module, Value& input)>;
  /// May replace the output.
  using AfterForward = std::function<void(Module& module, Value const& input, Value& output)>;
  /// May replace the input's gradient. Those of parameters may already have been sent: only `backward()` of
  /// the module itself changes them.
  using AfterBackward =
      std::function<void(Module& module, Value const& output_gradient, Value& input_gradient)>;
  void add_before_forward(BeforeForward hook);  ///< Runs before forward().
  void add_after_forward(AfterForward hook);    ///< Runs after forward().
  void add_after_backward(AfterBackward hook);  ///< Runs after backward().

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
