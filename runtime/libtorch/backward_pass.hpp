// Where a backward pass of PyTorch begins and ends.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace ddp::libtorch {

/// Notices, from the hooks of one wrapped module, which backward pass runs them. The first hook of a pass
/// queues its end in autograd's engine. A pass that a function of another pass started (reentrant backward,
/// as activation checkpointing has it) is a part of that one.
///
/// What it queues shares it, and outlives its owner if a pass does.
class BackwardPass : public std::enable_shared_from_this<BackwardPass> {
 public:
  struct Events {
    std::function<void()> ended;  ///< in the thread that ends the pass; what it throws leaves backward()
    std::function<void(std::string const& why)> abandoned;  ///< an exception ended it; must not throw
  };
  explicit BackwardPass(Events events);

  /// To be called in every hook, before anything else. Throws Error(unsupported) outside of a backward pass,
  /// and Error(invalid_state) while another pass of this module runs.
  void enter() {
    int const task = current_task();
    if (task == kNone || task != entered_.load(std::memory_order_acquire)) enter_slowly(task);
  }
  /// Nothing is called from now on.
  void close() noexcept;

 private:
  class End;
  [[nodiscard]] static int current_task() noexcept;
  void enter_slowly(int task);
  void end(int task, int depth);
  void go_on_outside(int task) noexcept;
  void abandon(std::string const& why) noexcept;

  Events events_;
  static constexpr int kNone = -1;   // no pass
  std::atomic<int> entered_{kNone};  // the pass of the last hook
  std::mutex mutex_;
  int outer_ = kNone;       // the pass, if its end is queued
  std::vector<int> inner_;  // those inside it whose ends are queued
  bool closed_ = false;
};

}  // namespace ddp::libtorch
