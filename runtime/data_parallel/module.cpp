#include "ddp/data_parallel/module.hpp"

#include <utility>

#include "ddp/core/text.hpp"
#include "ddp/device/device_guard.hpp"

namespace ddp {

struct Module::Hooks {
  template <class Hook>
  using Run = std::vector<std::pair<HookId, Hook>>;
  Run<BeforeForward> before_forward;
  Run<AfterForward> after_forward;
  Run<AfterBackward> after_backward;
  std::size_t next = 0;

  template <class Hook>
  HookId add(Run<Hook>& hooks, Hook hook) {
    require(static_cast<bool>(hook), "a hook must be a function, this one is empty");
    HookId const id{next++};
    hooks.emplace_back(id, std::move(hook));
    return id;
  }
};

Module::Module(Stream& stream) : Module(std::shared_ptr<Stream>(std::shared_ptr<void>(), &stream)) {}

Module::Module(std::shared_ptr<Stream> stream)
    : stream_(std::move(stream)), hooks_(std::make_shared<Hooks>()) {
  require(stream_ != nullptr, "a module needs a stream, found none");
}

Value Module::forward(Value const& input) {
  if (hooks_->before_forward.empty() && hooks_->after_forward.empty()) return do_forward(input);
  Value changed = input;
  for (auto const& [id, hook] : hooks_->before_forward) hook(*this, changed);
  Value output = do_forward(changed);
  for (auto const& [id, hook] : hooks_->after_forward) hook(*this, changed, output);
  return output;
}

Value Module::backward(Value const& output_gradient, GradientReady const& ready) {
  static GradientReady const nobody = [](std::size_t) {};
  Value gradient = do_backward(output_gradient, ready ? ready : nobody);
  for (auto const& [id, hook] : hooks_->after_backward) hook(*this, output_gradient, gradient);
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

Module::HookId Module::add_before_forward(BeforeForward hook) {
  return hooks_->add(hooks_->before_forward, std::move(hook));
}
Module::HookId Module::add_after_forward(AfterForward hook) {
  return hooks_->add(hooks_->after_forward, std::move(hook));
}
Module::HookId Module::add_after_backward(AfterBackward hook) {
  return hooks_->add(hooks_->after_backward, std::move(hook));
}

void Module::remove_hook(HookId hook) noexcept {
  auto const is_it = [hook](auto const& each) { return each.first == hook; };
  std::erase_if(hooks_->before_forward, is_it);
  std::erase_if(hooks_->after_forward, is_it);
  std::erase_if(hooks_->after_backward, is_it);
}

}  // namespace ddp
