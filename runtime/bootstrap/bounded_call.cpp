#include "bootstrap/bounded_call.hpp"

#include <unistd.h>

#include <exception>
#include <memory>
#include <optional>
#include <utility>

#include "core/pausing_deadline.hpp"
#include "core/system/thread_without_signals.hpp"
#include "ddp/core/log.hpp"

namespace ddp {

CallWatch::CallWatch(Deadline deadline, std::function<void()> overdue)
    : thread_(start_thread_without_signals([this, deadline, overdue = std::move(overdue)] {
        std::unique_lock lock(mutex_);
        if (!PausingDeadline(deadline).wait(lock, ended_, [this] { return returned_; })) overdue();
      })) {}

CallWatch::~CallWatch() {
  {
    std::lock_guard const lock(mutex_);
    returned_ = true;
  }
  ended_.notify_one();
  thread_.join();
}

void call_or_leave(std::chrono::milliseconds longest, std::function<void()> const& call,
                   ControlPlane& control, std::string const& message) noexcept {
  std::optional<CallWatch> watch;
  try {
    watch.emplace(Deadline::after(longest), [&] {
      log(LogLevel::error, message);
      control.report_error({.code = ErrorCode::aborted, .ranks = {control.rank()}, .detail = message});
      ::_exit(1);
    });
  } catch (std::exception const& error) {  // no thread for the time limit: the call matters more
    log(LogLevel::error, error.what());
  }
  call();
}

bool call_within(std::chrono::milliseconds longest, std::function<void()> call) {
  PausingDeadline timeout(longest);
  return call_within(timeout, std::move(call));
}

bool call_within(PausingDeadline& timeout, std::function<void()> call) {
  struct Outcome {
    std::mutex mutex;
    std::condition_variable changed;
    bool returned = false;
    std::exception_ptr thrown;  ///< handed over: the call's thread keeps no hold of it
  };
  auto const outcome = std::make_shared<Outcome>();
  start_thread_without_signals([call = std::move(call), outcome] {
    std::exception_ptr thrown;
    try {
      call();
    } catch (...) {
      thrown = std::current_exception();
    }
    std::lock_guard const lock(outcome->mutex);
    outcome->thrown = std::move(thrown);
    outcome->returned = true;
    outcome->changed.notify_one();
  }).detach();
  std::unique_lock lock(outcome->mutex);
  if (!timeout.wait(lock, outcome->changed, [&] { return outcome->returned; })) return false;
  if (auto const error = std::exchange(outcome->thrown, nullptr)) std::rethrow_exception(error);
  return true;
}

}  // namespace ddp
