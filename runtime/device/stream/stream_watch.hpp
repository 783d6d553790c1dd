// What a wait for a stream asks, beside the stream itself.
#pragma once

#include <cstdint>

namespace ddp {

/// Something that can fail while its work is on a stream: a communicator, or a stream that another waits for.
class StreamWatch {
 public:
  virtual ~StreamWatch() = default;
  /// Throws the failure, if there is one. Any thread.
  virtual void check() const = 0;
  /// How much of its work has been enqueued until now, as settle() counts it. Any thread.
  [[nodiscard]] virtual std::uint64_t enqueued() const noexcept { return 0; }
  /// For a wait that is over on the stream's side: returns when it is certain that its work up to `through`
  /// did what it was to do, or throws the failure. Makes no call of CUDA. Any thread.
  virtual void settle(std::uint64_t /*through*/) const { check(); }
  /// Whether it has ended without a failure and never has one any more: who asked it until now may forget it.
  /// Any thread.
  [[nodiscard]] virtual bool is_over() const noexcept { return false; }
};

}  // namespace ddp
