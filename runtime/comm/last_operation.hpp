// The wait of split() and allocate() for the operations of their communicator.
#pragma once

#include <chrono>
#include <memory>
#include <thread>

#include "core/pausing_deadline.hpp"
#include "ddp/core/failure.hpp"
#include "ddp/core/text.hpp"
#include "ddp/device/event.hpp"
#include "device/stream/stream_watch.hpp"

namespace ddp {

/// Waits until done(). `what`: the call that needs it. check() throws to end the wait early. At the deadline,
/// calls fail(Failure) for the group, and throws CommError(timeout). Operations that run have a deadline of
/// their own, whose error says more: so this wait lasts a second longer.
template <class Done, class Check, class Fail>
void wait_for_operations(char const* what, std::chrono::milliseconds timeout, Done done, Check check,
                         Fail fail) {
  constexpr auto kOwnDeadlineFirst = std::chrono::seconds(1);
  constexpr auto kNap = std::chrono::microseconds(100);
  PausingDeadline limit(Deadline::bounded(timeout) + kOwnDeadlineFirst);
  for (;;) {
    check();
    if (done()) return;
    if (limit.ended()) break;
    std::this_thread::sleep_for(kNap);
  }
  Failure const failure{
      .code = ErrorCode::timeout,
      .operation = what,
      .waited = timeout,
      .detail = text("waited ", seconds(timeout),
                     " s for operations of this communicator that are still on a stream of this rank, behind "
                     "other work; look at what that stream is doing")};
  fail(failure);
  check();
  throw CommError(failure);
}

/// A mark behind a communicator's last operation on a stream. All streams are of one device. An operation
/// that is captured into a CUDA graph counts as done.
class LastOperation {
 public:
  explicit LastOperation(Device device) : mark_(device) {}

  void was_enqueued(Stream& stream) {
    if (stream.is_capturing()) return;
    used_ = true;
    if (stream.device().kind == DeviceKind::cpu) watch_ = host_stream(stream).watch();
    mark_.record(stream);
  }
  /// Returns when it is done. Otherwise as wait_for_operations(); throws what its stream failed with before.
  template <class Check, class Fail>
  void wait(char const* what, std::chrono::milliseconds timeout, Check check, Fail fail) const {
    wait_for_operations(
        what, timeout, [this] { return !used_ || mark_.reached(); },
        [&] {
          check();
          if (watch_) watch_->check();
        },
        fail);
  }

 private:
  Event mark_;
  std::shared_ptr<StreamWatch const> watch_;  // of a host's stream, which may be gone
  bool used_ = false;
};

}  // namespace ddp
