#include "libtorch/ddp/backward_pass.hpp"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <cstddef>
#include <exception>
#include <utility>

#include "ddp/core/error.hpp"
#include "ddp/core/text.hpp"

namespace ddp::libtorch {
namespace {

using torch::autograd::GraphTask;

// Autograd tells only the address of a member of the pass that this thread runs.
GraphTask const* current_graph_task() noexcept {
  auto const* const member = torch::autograd::get_current_graph_task_nodes_in_graph();
  if (member == nullptr) return nullptr;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winvalid-offsetof"  // g++ supports it for every class without virtual bases
  auto const* const task = reinterpret_cast<GraphTask const*>(reinterpret_cast<std::byte const*>(member) -
                                                              offsetof(GraphTask, nodes_in_graph_));
#pragma GCC diagnostic pop
  return task;
}

}  // namespace

// Lives in autograd's list of callbacks for the end of a pass, and is destroyed with the pass.
class BackwardPass::End {
 public:
  End(std::shared_ptr<BackwardPass> pass, GraphTask const& task)
      : pass_(std::move(pass)),
        task_(static_cast<int>(task.id_)),
        depth_(task.reentrant_depth_),
        result_(task.future_result_) {}
  ~End() {
    if (!reached_) {
      pass_->abandon(result_->hasError() ? result_->tryRetrieveErrorMessage() : "it did not reach its end");
    } else if (depth_ > 0) {
      pass_->go_on_outside(task_);
    }
  }
  End(End const&) = delete;
  End& operator=(End const&) = delete;

  void reach() {
    reached_ = true;
    pass_->end(task_, depth_);
  }
  [[nodiscard]] BackwardPass& pass() const noexcept { return *pass_; }
  [[nodiscard]] int task() const noexcept { return task_; }
  [[nodiscard]] bool is_outer() const noexcept { return depth_ == 0; }

 private:
  std::shared_ptr<BackwardPass> pass_;
  int task_;
  int depth_;
  c10::intrusive_ptr<at::ivalue::Future> result_;
  bool reached_ = false;
};

BackwardPass::BackwardPass(Events events) : events_(std::move(events)) {
  static std::atomic<std::uint64_t> passes{0};
  number_ = passes++;
}

int BackwardPass::current_task() noexcept { return torch::autograd::get_current_graph_task_id(); }

void BackwardPass::enter_slowly(int task) {
  GraphTask const* const running = current_graph_task();
  if (running == nullptr) {
    throw Error(
        ErrorCode::unsupported,
        "a gradient of a wrapped module was accumulated outside of backward(): only backward() knows when "
        "a step ends");
  }
  if (static_cast<int>(running->id_) != task) {
    throw Error(ErrorCode::unsupported,
                "the PyTorch that runs is not the one with which ddp::libtorch was built: autograd's "
                "GraphTask has another form. Build both with the same version");
  }
  {
    std::lock_guard const lock(mutex_);
    if (task == outer_ || std::ranges::find(inner_, task) != inner_.end()) {
      entered_.store(task, std::memory_order_release);
      return;
    }
    if (running->reentrant_depth_ > 0) {
      inner_.push_back(task);
    } else if (outer_ == kNone) {
      outer_ = task;
    } else {
      throw Error(
          ErrorCode::invalid_state,
          "two backward passes of one wrapped module run at once: call backward() for one loss after the "
          "other, or once for their sum");
    }
  }
  auto const end = std::make_shared<End>(shared_from_this(), *running);
  torch::autograd::Engine::get_default_engine().queue_callback([end] { reach(end); });
  entered_.store(task, std::memory_order_release);
}

// The ends of a pass that this thread has reached, one for each module: autograd owns them, and drops those
// of a pass that fails.
std::vector<std::weak_ptr<BackwardPass::End>>& BackwardPass::reached_ends() {
  thread_local std::vector<std::weak_ptr<End>> ends;
  std::erase_if(ends, [](auto const& end) { return end.expired(); });
  return ends;
}

// Autograd calls the callback that is queued here after the ends of the other modules.
void BackwardPass::reach(std::shared_ptr<End> const& end) {
  if (!end->is_outer()) return end->reach();
  auto& ends = reached_ends();
  int const task = end->task();
  bool const first =
      std::ranges::none_of(ends, [&](auto const& other) { return other.lock()->task() == task; });
  ends.push_back(end);
  if (first) torch::autograd::Engine::get_default_engine().queue_callback([task] { reach_all(task); });
}

void BackwardPass::reach_all(int task) {
  std::vector<std::shared_ptr<End>> ends;
  std::erase_if(reached_ends(), [&](auto const& reached) {
    auto end = reached.lock();
    bool const here = end->task() == task;
    if (here) ends.push_back(std::move(end));
    return here;
  });
  std::ranges::sort(ends, {}, [](auto const& end) { return end->pass().number_; });
  if (ends.size() > 1) {
    for (auto const& end : ends) end->pass().send();
  }
  for (auto const& end : ends) end->reach();
}

void BackwardPass::send() {
  {
    std::lock_guard const lock(mutex_);
    if (closed_) return;
  }
  events_.sends();
}

void BackwardPass::end(int task, int depth) {
  {
    std::lock_guard const lock(mutex_);
    entered_.store(kNone, std::memory_order_release);
    if (depth > 0) {
      std::erase(inner_, task);
      return;
    }
    outer_ = kNone;
    if (closed_) return;
  }
  events_.ended();
}

// The function that started the inner pass still runs, in this thread, as a part of the outer one.
void BackwardPass::go_on_outside(int task) noexcept {
  try {
    if (int const outer = current_task(); outer != kNone && outer != task) {
      enter_slowly(outer);
      return;
    }
    abandon(
        "a backward pass inside another ended in another thread than it began in: they are nested too "
        "deeply");
  } catch (std::exception const& error) {
    abandon(error.what());
  }
}

void BackwardPass::abandon(std::string const& why) noexcept {
  std::lock_guard const lock(mutex_);
  entered_.store(kNone, std::memory_order_release);
  outer_ = kNone;
  inner_.clear();
  if (!closed_) events_.abandoned(why);
}

void BackwardPass::close() noexcept {
  std::lock_guard const lock(mutex_);
  closed_ = true;
}

}  // namespace ddp::libtorch
