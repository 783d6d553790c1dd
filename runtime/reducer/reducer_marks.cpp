// What the program says of a step and its gradients.
#include <cstddef>
#include <functional>
#include <string_view>
#include <utility>

#include "ddp/core/text.hpp"
#include "ddp/device/tensor_ops.hpp"
#include "reducer/reducer_impl.hpp"

namespace ddp {

void Reducer::Impl::since_last_step(bool changed_parameters, bool cleared_gradients) {
  if (!in_step_ && no_sync_depth_ == 0) since_ = SinceLastStep::of(changed_parameters, cleared_gradients);
}

void Reducer::Impl::gradient_ready(std::size_t index) {
  require_usable();
  check_index(index);
  mark(index, {});
}

void Reducer::Impl::gradient_ready(std::size_t index, Tensor source) {
  require_usable();
  check_index(index);
  check_source(index, source.view());
  bool const is_there = source.view().data == memory_.gradient(index).data || source.view().count() == 0;
  mark(index, is_there ? Tensor() : std::move(source));
}

void Reducer::Impl::mark(std::size_t index, Tensor source) {
  if (no_sync_depth_ > 0) {
    tracker_.mark_used(index);
    bool const elsewhere = source.view().data != nullptr;
    summed_elsewhere_[index] = elsewhere ? 1 : 0;
    if (recording_ != nullptr) {
      recording_->marks[index] = elsewhere ? RecordedStep::Mark::elsewhere : RecordedStep::Mark::here;
    }
    return;
  }
  if (!in_step_) refuse_capture();
  or_fail([&] {
    if (!in_step_) begin_step();
    if (tracker_.mark(index) == ReadyTracker::Mark::duplicate) throw_duplicate(index, "gradient_ready");
    if (options_.storage == GradientStorage::arena) sources_.set(index, std::move(source));
    launch_complete_buckets();
  });
}

void Reducer::Impl::no_gradient(std::size_t index, Tensor kept) {
  require_usable();
  check_index(index);
  if (kept.view().data != nullptr) check_source(index, kept.view());
  if (no_sync_depth_ > 0) return;
  if (!in_step_) refuse_capture();
  or_fail([&] {
    if (!in_step_) begin_step();
    require_sum(index);
    if (tracker_.skip(index) == ReadyTracker::Mark::duplicate) throw_duplicate(index, "no_gradient");
    if (kept.view().data != nullptr) sources_.set(index, std::move(kept));
    launch_complete_buckets();
  });
}

void Reducer::Impl::throw_duplicate(std::size_t index, char const* call) const {
  std::string_view const before = tracker_.skipped(index) ? "no_gradient" : "gradient_ready";
  if (before == "gradient_ready" && before == call) {
    throw Error(ErrorCode::invalid_state,
                text(name_of(index), " was marked ready twice in synchronised step ", steps_,
                     options_.allow_repeated_ready
                         ? text("; the first step marked it ", expected_marks_[index], " times")
                         : ". If the model really uses it several times a step, set "
                           "ReducerOptions::allow_repeated_ready; to accumulate, use no_sync()"));
  }
  throw Error(ErrorCode::invalid_state,
              text(call, "() for ", name_of(index), " after ", before, "() in synchronised step ", steps_,
                   ": in a step a parameter has a gradient or none; call one of the two"));
}

// What the bucket holds of a parameter whose micro-steps were added up elsewhere is of an earlier step.
void Reducer::Impl::require_sum(std::size_t index) const {
  if (summed_elsewhere_[index] == 0 || tracker_.marks(index) != 0) return;
  throw Error(
      ErrorCode::invalid_state,
      text(name_of(index),
           " was marked ready under no_sync() with a gradient in the program's own memory, and not in "
           "synchronised step ",
           steps_, ", which sends the sum: call gradient_ready() with the sum before synchronize()"));
}

void Reducer::Impl::zero_gradients() {
  require_usable();
  if (in_step_) {
    throw Error(ErrorCode::invalid_state,
                "zero_gradients() in the middle of a step: call synchronize() first");
  }
  if (options_.storage == GradientStorage::arena) {
    for (Tensor const& arena : memory_.arenas()) {
      zero_fill(arena, *lane_of(lanes_, arena.view().device).compute_stream);
    }
    return;
  }
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    zero_fill(memory_.gradient(p), *lane_of(lanes_, specs_[p].device).compute_stream);
  }
}

void Reducer::Impl::check_source(std::size_t index, TensorView const& source) const {
  TensorView const& value = parameters_[index].value;
  require(options_.storage == GradientStorage::arena, [&] {
    return text("gradient_ready(", index, ", source): expected storage = arena, found ",
                to_string(options_.storage), ", with which ", name_of(index),
                " has its gradient in Parameter::gradient: write it there and call gradient_ready(", index,
                ")");
  });
  require(source.count() == value.count() && source.dtype == value.dtype && source.device == value.device &&
              (source.data != nullptr || value.count() == 0),
          [&] {
            return text("gradient_ready(", index, ", source): expected the gradient of ", name_of(index),
                        ", ", describe(value), ", found ", source.data == nullptr ? "no memory for " : "",
                        describe(source),
                        "; pass as many elements of that dtype on that device, in the parameter's order of "
                        "memory");
          });
  auto const* const first = static_cast<std::byte const*>(source.data);
  if (first == memory_.gradient(index).data) return;
  for (Tensor const& arena : memory_.arenas()) {
    auto const* const begin = static_cast<std::byte const*>(arena.view().data);
    require(std::less<>{}(first, begin) || !std::less<>{}(first, begin + arena.view().bytes()), [&] {
      return text("gradient_ready(", index,
                  ", source): the source lies among the buckets, but not where the gradient of ",
                  name_of(index), " is bound; use what bind_gradient was given last");
    });
  }
}

void Reducer::Impl::check_marks() const {
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    require_sum(p);
    std::uint32_t const marks = tracker_.marks(p);
    if (marks != 0 && marks < expected_marks_[p]) {  // expected 0: not known yet
      throw Error(ErrorCode::invalid_state,
                  text(name_of(p), " was marked ready ", marks, " times in synchronised step ", steps_,
                       ", the first step marked it ", expected_marks_[p], " times"));
    }
  }
}

}  // namespace ddp
