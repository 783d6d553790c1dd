// What can fail while its work is on a stream.
#pragma once

#include <cstdint>

namespace ddp {

/// A communicator, or a stream that another waits for. Waits for the stream throw its failure. Any thread.
class StreamWatch {
 public:
  virtual ~StreamWatch() = default;
  /// Throws the failure, if there is one.
  virtual void check() const = 0;
  /// How much work has been enqueued until now, as settle() counts it.
  [[nodiscard]] virtual std::uint64_t enqueued() const noexcept { return 0; }
  /// The stream has passed the work up to `through`: returns when it is certain that this work has succeeded,
  /// or throws the failure. Makes no call of CUDA.
  virtual void settle(std::uint64_t /*through*/) const { check(); }
  /// Whether it has ended without a failure, and can no longer have one: then streams may forget it.
  [[nodiscard]] virtual bool is_over() const noexcept { return false; }
};

}  // namespace ddp
