// Where a backward pass of PyTorch begins and ends.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace ddp::libtorch {

/// Finds out, in the hooks of one wrapped module, which backward pass runs them. The first hook of a pass
/// queues a callback for the pass's end in autograd's engine. A pass that a function of another pass started
/// (reentrant backward, as in activation checkpointing) is a part of the outer pass.
///
/// Hooks of several modules may run in one pass, in different orders on different ranks. So at its end all
/// modules send first, and then end their steps in the order in which they were wrapped, equal on all ranks.
///
/// The queued callbacks share ownership of it, since a pass may outlive the owner.
class BackwardPass : public std::enable_shared_from_this<BackwardPass> {
 public:
  struct Events {
    // Called in the thread that ends the pass; their exceptions leave backward().
    std::function<void()> sends;  ///< only if other modules end too: before any of them ends
    std::function<void()> ended;
    std::function<void(std::string const& why)> abandoned;  ///< an exception ended it; must not throw
  };
  explicit BackwardPass(Events events);

  /// To be called in every hook, before anything else. Throws Error(unsupported) outside of a backward pass,
  /// and Error(invalid_state) while another pass of this module runs.
  void enter() {
    int const task = current_task();
    if (task == kNone || task != entered_.load(std::memory_order_acquire)) enter_slowly(task);
  }
  /// No function is called from now on.
  void close() noexcept;

 private:
  class End;
  [[nodiscard]] static int current_task() noexcept;
  [[nodiscard]] static std::vector<std::weak_ptr<End>>& reached_ends();
  static void reach(std::shared_ptr<End> const& end);
  static void reach_all(int task);
  void enter_slowly(int task);
  void send();
  void end(int task, int depth);
  void go_on_outside(int task) noexcept;
  void abandon(std::string const& why) noexcept;

  Events events_;
  std::uint64_t number_;             // in the order of construction
  static constexpr int kNone = -1;   // no pass
  std::atomic<int> entered_{kNone};  // the pass of the last hook
  std::mutex mutex_;
  int outer_ = kNone;       // the pass, if its end is queued
  std::vector<int> inner_;  // those inside it whose ends are queued
  bool closed_ = false;
};

}  // namespace ddp::libtorch
