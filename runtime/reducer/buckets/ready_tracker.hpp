// Which gradients of this step are complete: a pure state machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ddp/reducer/bucket_plan.hpp"

namespace ddp {

/// Counts marks of parameters and says which buckets may be launched, strictly in plan order. The last bucket
/// also waits for parameters without elements, which are in no bucket, since the tail that goes with it says
/// which parameters were used. No operation after construction allocates.
class ReadyTracker {
 public:
  /// What became of a mark.
  enum class Mark : std::uint8_t {
    accepted,   ///< counted
    duplicate,  ///< the parameter was complete already in this step, or marked before it was to be skipped
  };

  ReadyTracker() = default;
  /// `expected`: marks per parameter and step that complete it; 1 for all unless allow_repeated_ready. A
  /// count of 0: not known yet, complete only at finish().
  ReadyTracker(BucketPlan const& plan, std::span<std::uint32_t const> expected);

  /// A mark in a step that will be synchronised.
  Mark mark(std::size_t parameter);
  /// The parameter is complete in this step without a mark.
  Mark skip(std::size_t parameter);
  /// A mark in a micro-step under no_sync: the parameter counts as used in the next synchronised step.
  void mark_used(std::size_t parameter) { used_[parameter] = 1; }
  /// All parameters count as complete from now on, marked or not.
  void finish() { launchable_ = pending_.size(); }

  /// Buckets [0, launchable()) of the plan are complete.
  [[nodiscard]] std::size_t launchable() const noexcept { return launchable_; }
  /// 1 for each parameter that was marked since the last reset(), 0 for the others.
  [[nodiscard]] std::span<std::uint8_t const> used() const noexcept { return used_; }
  [[nodiscard]] bool skipped(std::size_t parameter) const noexcept { return skipped_[parameter] != 0; }
  /// Marks of `parameter` in this step.
  [[nodiscard]] std::uint32_t marks(std::size_t parameter) const noexcept { return marks_[parameter]; }
  /// Parameters in the order in which they became complete in this step.
  [[nodiscard]] std::span<std::size_t const> arrival_order() const noexcept { return arrival_; }
  /// Begins the next step.
  void reset();

 private:
  void complete(std::size_t parameter);
  std::vector<std::uint32_t> expected_;
  std::vector<std::uint32_t> marks_;
  std::vector<std::uint8_t> used_;
  std::vector<std::uint8_t> skipped_;
  std::vector<std::size_t> arrival_;
  std::vector<std::uint32_t> pending_at_start_;  // per bucket: parameters that it waits for
  std::vector<std::uint32_t> pending_;
  std::vector<std::size_t> first_bucket_;  // per parameter, into bucket_indices_; one more at the end
  std::vector<std::size_t> bucket_indices_;
  std::size_t launchable_ = 0;
};

}  // namespace ddp
