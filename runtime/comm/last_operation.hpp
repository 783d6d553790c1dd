// Whether a communicator's operations are done, as split() and allocate() must know.
#pragma once

#include "ddp/core/text.hpp"
#include "ddp/device/event.hpp"

namespace ddp {

/// A mark behind a communicator's last operation on a stream. Streams of one device.
class LastOperation {
 public:
  explicit LastOperation(Device device) : mark_(device) {}

  void was_enqueued(Stream& stream) {
    used_ = true;
    mark_.record(stream);
  }
  /// Throws Error(invalid_state) for `what`, the call that needs it, unless the last operation is done.
  void require_done(char const* what) const {
    if (!used_ || mark_.reached()) return;
    throw Error(ErrorCode::invalid_state,
                text(what,
                     ": operations of this communicator are still on a stream; call synchronize() on that "
                     "stream first"));
  }

 private:
  Event mark_;
  bool used_ = false;
};

}  // namespace ddp
