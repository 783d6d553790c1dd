// Which steps a GPU has committed (R26).
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "ddp/core/tensor.hpp"

namespace ddp {

/// One for each membership of a World that ranks with a GPU may rebuild.
///
/// The host runs ahead of a GPU, and a kernel of a collective that is ended early leaves half a sum. So a
/// step counts only if its last kernel, behind all its collectives, finds the word poisoned() still 0. It is
/// set before any operation of the membership is ended early, and stays. So when one step is not committed,
/// no later one is, of whatever model.
class StepCommits {
 public:
  StepCommits();

  /// Before any operation is ended early. Any thread.
  void poison() noexcept;
  /// Read by the GPU: not 0 once something was ended early.
  [[nodiscard]] std::uint32_t const* poisoned() const noexcept;

  /// The steps of one model. The GPU writes the two words, in pinned memory.
  class Steps {
   public:
    Steps();
    /// The kernel that commits a step is enqueued.
    void enqueued() noexcept { ++enqueued_; }
    struct Words {
      std::uint64_t committed;
      std::uint64_t ended;  ///< committed or not; written last
    };
    [[nodiscard]] Words* words() const noexcept { return static_cast<Words*>(memory_.view().data); }
    [[nodiscard]] std::uint64_t committed() const noexcept;
    [[nodiscard]] bool all_ended() const noexcept;
    [[nodiscard]] bool all_committed() const noexcept;

   private:
    std::atomic<std::uint64_t> enqueued_{0};
    Tensor memory_;
  };
  [[nodiscard]] std::shared_ptr<Steps> make_steps();

  /// The host waits until all steps that are enqueued by now have ended; calls `check`, which throws a
  /// failure, about once a millisecond. Throws CommError(aborted) if one was not committed. So a rank that
  /// waits before it sends the rest of a step is never more than one step ahead of what it has committed, and
  /// neither are the ranks that need what it sends.
  void wait(std::function<void()> const& check) const;

 private:
  Tensor poisoned_;  // pinned
  mutable std::mutex mutex_;
  std::vector<std::weak_ptr<Steps>> steps_;  // guarded by it
};

}  // namespace ddp
