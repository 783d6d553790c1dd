// The interface of objects that can fail while their work is on a stream.
#pragma once

#include <atomic>
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
  /// Whether this watch has ended. Then a stream forgets it, once a wait has thrown its failure.
  [[nodiscard]] virtual bool has_ended() const noexcept { return is_over(); }
  /// Whether it has ended, and has not failed or the program knows of the failure. Then streams forget it.
  [[nodiscard]] virtual bool is_over() const noexcept { return false; }

  /// As check(), in a call by the program, which then knows of the failure.
  void tell() const {
    tell([this] { check(); });
  }
  /// The program has been told of the failure in another way, or has caused it.
  void program_knows() const noexcept { known_.store(true, std::memory_order_relaxed); }

 protected:
  [[nodiscard]] bool is_known() const noexcept { return known_.load(std::memory_order_relaxed); }
  /// Does what the program called for; `work` throws nothing but the failure.
  template <class Work>
  void tell(Work work) const {
    try {
      work();
    } catch (...) {
      program_knows();
      throw;
    }
  }

 private:
  mutable std::atomic<bool> known_{false};
};

}  // namespace ddp
