#include "reducer/buckets/gradient_marks.hpp"

#include <algorithm>

#include "ddp/core/error.hpp"
#include "ddp/core/text.hpp"
#include "reducer/checks/parameter_check.hpp"

namespace ddp {

GradientMarks::GradientMarks(std::vector<Parameter> const& parameters, bool repeated)
    : parameters_(&parameters),
      repeated_(repeated),
      expected_(parameters.size(), repeated ? 0U : 1U),
      elsewhere_(parameters.size()) {}

void GradientMarks::mark(std::size_t parameter, std::uint64_t step) {
  if (tracker_.mark(parameter) == ReadyTracker::Mark::duplicate) {
    throw_duplicate(parameter, "gradient_ready", step);
  }
}

void GradientMarks::skip(std::size_t parameter, std::uint64_t step) {
  require_sum(parameter, step);
  if (tracker_.skip(parameter) == ReadyTracker::Mark::duplicate) {
    throw_duplicate(parameter, "no_gradient", step);
  }
}

void GradientMarks::mark_micro_step(std::size_t parameter, bool elsewhere) {
  tracker_.mark_used(parameter);
  elsewhere_[parameter] = elsewhere ? 1 : 0;
}

void GradientMarks::finish(std::uint64_t step) {
  for (std::size_t p = 0; p < expected_.size(); ++p) {
    require_sum(p, step);
    std::uint32_t const marks = tracker_.marks(p);
    if (marks == 0 || marks >= expected_[p]) continue;
    throw Error(ErrorCode::invalid_state, text(parameter_name(*parameters_, p), " was marked ready ", marks,
                                               " times in synchronised step ", step,
                                               ", the first step marked it ", expected_[p], " times"));
  }
  tracker_.finish();
}

void GradientMarks::end_step(BucketPlan const& plan) {
  std::ranges::fill(elsewhere_, std::uint8_t{0});
  bool learnt = false;
  for (std::size_t p = 0; repeated_ && p < expected_.size(); ++p) {
    if (expected_[p] != 0 || tracker_.marks(p) == 0) continue;
    expected_[p] = tracker_.marks(p);
    learnt = true;
  }
  learnt ? plan_changed(plan) : tracker_.reset();
}

void GradientMarks::forget() {
  tracker_.reset();
  std::ranges::fill(elsewhere_, std::uint8_t{0});
}

void GradientMarks::throw_duplicate(std::size_t parameter, std::string_view call, std::uint64_t step) const {
  std::string_view const before = tracker_.skipped(parameter) ? "no_gradient" : "gradient_ready";
  std::string const name = parameter_name(*parameters_, parameter);
  if (before == "gradient_ready" && before == call) {
    throw Error(ErrorCode::invalid_state,
                text(name, " was marked ready twice in synchronised step ", step,
                     repeated_ ? text("; the first step marked it ", expected_[parameter], " times")
                               : ". If the model really uses it several times a step, set "
                                 "Options::allow_repeated_ready; to accumulate, use no_sync()"));
  }
  throw Error(ErrorCode::invalid_state,
              text(call, "() for ", name, " after ", before, "() in synchronised step ", step,
                   ": in a step a parameter has a gradient or none; call one of the two"));
}

// Throws if micro-steps added `parameter` up elsewhere: then the bucket holds its values of an earlier step.
void GradientMarks::require_sum(std::size_t parameter, std::uint64_t step) const {
  if (elsewhere_[parameter] == 0 || tracker_.marks(parameter) != 0) return;
  throw Error(
      ErrorCode::invalid_state,
      text(parameter_name(*parameters_, parameter),
           " was marked ready under no_sync() with a gradient in the program's own memory, and not in "
           "synchronised step ",
           step, ", which sends the sum: call gradient_ready() with the sum before synchronize()"));
}

}  // namespace ddp
