#include "ddp/data_parallel/module.hpp"

#include <utility>

#include "ddp/core/text.hpp"
#include "ddp/device/device_guard.hpp"

namespace ddp {

struct Module::Hooks {
  std::vector<BeforeForward> before_forward;
  std::vector<AfterForward> after_forward;
  std::vector<AfterBackward> after_backward;
};

namespace {

template <class Hook>
void add_hook(std::vector<Hook>& hooks, Hook hook) {
  require(static_cast<bool>(hook), "a hook must be a function, this one is empty");
  hooks.push_back(std::move(hook));
}

}  // namespace

Module::Module(Stream& stream) : Module(std::shared_ptr<Stream>(std::shared_ptr<void>(), &stream)) {}

Module::Module(std::shared_ptr<Stream> stream)
    : stream_(std::move(stream)), hooks_(std::make_shared<Hooks>()) {
  require(stream_ != nullptr, "a module needs a stream, found none");
}

Value Module::forward(Value const& input) {
  if (hooks_->before_forward.empty() && hooks_->after_forward.empty()) return do_forward(input);
  Value changed = input;
  for (auto const& hook : hooks_->before_forward) hook(*this, changed);
  Value output = do_forward(changed);
  for (auto const& hook : hooks_->after_forward) hook(*this, changed, output);
  return output;
}

Value Module::backward(Value const& output_gradient, GradientReady const& ready) {
  static GradientReady const nobody = [](std::size_t) {};
  Value gradient = do_backward(output_gradient, ready ? ready : nobody);
  for (auto const& hook : hooks_->after_backward) hook(*this, output_gradient, gradient);
  return gradient;
}

void Module::keep_gradient_memory(std::shared_ptr<void const> const& memory) {
  gradient_memory_ = memory;
  for (Child const& child : children()) child.module->keep_gradient_memory(memory);
}

std::shared_ptr<Module> Module::clone_to(Device device) { return clone_to(make_compute_stream(device)); }

std::shared_ptr<Module> Module::clone_to(std::shared_ptr<Stream> stream) {
  DeviceGuard const guard(stream->device());
  std::shared_ptr<Module> clone = do_clone(std::move(stream));
  require(clone != nullptr && clone.get() != this, "do_clone() must return a new module");
  clone->share_hooks(*this);
  return clone;
}

void Module::share_hooks(Module& original) {
  hooks_ = original.hooks_;
  auto const mine = children();
  auto const theirs = original.children();
  require(mine.size() == theirs.size(), [&] {
    return text("a clone must have the children of its original: expected ", theirs.size(), ", found ",
                mine.size());
  });
  for (std::size_t i = 0; i < mine.size(); ++i) mine[i].module->share_hooks(*theirs[i].module);
}

void Module::add_before_forward(BeforeForward hook) { add_hook(hooks_->before_forward, std::move(hook)); }
void Module::add_after_forward(AfterForward hook) { add_hook(hooks_->after_forward, std::move(hook)); }
void Module::add_after_backward(AfterBackward hook) { add_hook(hooks_->after_backward, std::move(hook)); }

}  // namespace ddp
