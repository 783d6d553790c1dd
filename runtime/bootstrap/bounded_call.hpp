// Calls into libraries that may never return and cannot be interrupted.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "core/pausing_deadline.hpp"
#include "ddp/bootstrap/control_plane.hpp"
#include "ddp/core/deadline.hpp"

namespace ddp {

/// Watches over such a call: if this object still exists at the deadline, it calls `overdue` once, in a
/// thread of its own. The call itself goes on.
class CallWatch {
 public:
  CallWatch(Deadline deadline, std::function<void()> overdue);
  ~CallWatch();
  CallWatch(CallWatch const&) = delete;
  CallWatch& operator=(CallWatch const&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  bool returned_ = false;
  std::thread thread_;
};

/// Runs `call`, which must not throw, in the calling thread. If it has not returned after `longest`, logs
/// `message`, reports it (ErrorCode::aborted) and ends the process with exit code 1, without destructors: for
/// calls that must return before the process can go on.
void call_or_leave(std::chrono::milliseconds longest, std::function<void()> const& call,
                   ControlPlane& control, std::string const& message) noexcept;

/// Runs `call` in a thread of its own and waits for it at most `longest`; throws what it throws. Returns
/// false if it has not returned by then: its thread is left to itself, so `call` must own what it uses. It
/// destroys `call`; the waiting thread destroys what was thrown.
[[nodiscard]] bool call_within(std::chrono::milliseconds longest, std::function<void()> call);
/// The same, for a call that is a part of what `timeout` bounds.
[[nodiscard]] bool call_within(PausingDeadline& timeout, std::function<void()> call);

}  // namespace ddp
