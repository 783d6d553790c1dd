#include "libtorch/graph/operation_trail.hpp"

#include <ATen/record_function.h>

#include <exception>
#include <memory>
#include <mutex>

namespace ddp::libtorch {
namespace {

// Global, since PyTorch's observers cannot hold a pointer to an object.
struct Trail {
  std::mutex mutex;
  bool is_followed = false;
  std::string failed;  // operations that an exception has left, the innermost first
};

Trail& the_trail() {
  static Trail trail;
  return trail;
}

std::unique_ptr<at::ObserverContext> begun(at::RecordFunction const& /*operation*/) { return nullptr; }

void ended(at::RecordFunction const& operation, at::ObserverContext* /*context*/) {
  Trail& trail = the_trail();
  std::lock_guard const lock(trail.mutex);
  if (std::uncaught_exceptions() > 0) {
    trail.failed += trail.failed.empty() ? "in " : " in ";
    trail.failed += operation.name();
  } else {
    trail.failed.clear();  // the program has caught it
  }
}

}  // namespace

// An observer of a thread also sees the threads that run its backward passes.
OperationTrail::OperationTrail() {
  Trail& trail = the_trail();
  std::lock_guard const lock(trail.mutex);
  if (trail.is_followed) return;
  handle_ = at::addThreadLocalCallback(
      at::RecordFunctionCallback(begun, ended)
          .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
  trail.is_followed = true;
  trail.failed.clear();
}

OperationTrail::~OperationTrail() {
  if (handle_ == 0) return;
  at::removeCallback(handle_);
  Trail& trail = the_trail();
  std::lock_guard const lock(trail.mutex);
  trail.is_followed = false;
}

std::string OperationTrail::where() const {
  if (handle_ == 0) return {};
  Trail& trail = the_trail();
  std::lock_guard const lock(trail.mutex);
  return trail.failed.empty() ? std::string() : trail.failed + ": ";
}

}  // namespace ddp::libtorch
