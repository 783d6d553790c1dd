// Which gradients of a step are ready, and how.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "ddp/reducer/parameter.hpp"
#include "reducer/buckets/ready_tracker.hpp"

namespace ddp {

/// What the program has said of each parameter since the last step. Functions that take a step's number name
/// it in the Error(invalid_state) that they throw.
class GradientMarks {
 public:
  /// `repeated`: parameters may be marked several times in a step, as often as in the first that marks them
  /// (R8). `parameters` must outlive this object.
  GradientMarks(std::vector<Parameter> const& parameters, bool repeated);

  /// Begins to use `plan`: all marks are forgotten.
  void plan_changed(BucketPlan const& plan) { tracker_ = ReadyTracker(plan, expected_); }

  /// In a step: the gradient of `parameter` is ready.
  void mark(std::size_t parameter, std::uint64_t step);
  /// In a step: `parameter` has no gradient.
  void skip(std::size_t parameter, std::uint64_t step);
  /// In a micro-step: its gradient was added up, where it is bound, or `elsewhere`, in memory of the program.
  void mark_micro_step(std::size_t parameter, bool elsewhere);
  /// No more marks come. Throws if a parameter lacks a mark that it must have before the rest is sent.
  void finish(std::uint64_t step);
  /// The step is over. Learns how often parameters are marked.
  void end_step(BucketPlan const& plan);
  /// Forgets all marks.
  void forget();
  /// The same, but keeps where micro-steps added up.
  void forget_step() { tracker_.reset(); }

  /// Buckets [0, complete()) are complete.
  [[nodiscard]] std::size_t complete() const noexcept { return tracker_.launchable(); }
  /// 1 for each parameter that was marked, in the step or in a micro-step before it.
  [[nodiscard]] std::span<std::uint8_t const> used() const noexcept { return tracker_.used(); }
  [[nodiscard]] bool marked_in_step(std::size_t parameter) const noexcept {
    return tracker_.marks(parameter) != 0;
  }
  /// Parameters in the order in which they became complete in this step.
  [[nodiscard]] std::span<std::size_t const> arrival_order() const noexcept {
    return tracker_.arrival_order();
  }
  [[nodiscard]] bool repeated() const noexcept { return repeated_; }

 private:
  [[noreturn]] void throw_duplicate(std::size_t parameter, std::string_view call, std::uint64_t step) const;
  void require_sum(std::size_t parameter, std::uint64_t step) const;

  std::vector<Parameter> const* parameters_;
  bool repeated_;
  std::vector<std::uint32_t> expected_;  // marks in a step; 0: not known yet
  std::vector<std::uint8_t> elsewhere_;  // by parameter: where micro-steps added it up
  ReadyTracker tracker_;
};

}  // namespace ddp
