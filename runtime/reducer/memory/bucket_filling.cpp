// How a bucket's gradients get to where they are sent from, and how its results get back.
#include <cstddef>
#include <functional>

#include "ddp/core/error.hpp"
#include "ddp/core/text.hpp"
#include "reducer/checks/gradient_checks.hpp"
#include "reducer/checks/parameter_check.hpp"
#include "reducer/memory/gradient_memory.hpp"

namespace ddp {

void move_elements(std::span<Copy const> copies, Stream& stream) {
  if (copies[0].to.dtype == copies[0].from.dtype) {
    copy_elements(copies, stream);
  } else {
    convert_elements(copies, stream);
  }
}

Stream& GradientMemory::comm_stream(std::size_t bucket) const {
  return *lane_of(lanes_, plan_->buckets()[bucket].device).comm_stream;
}

// Enqueued work reads the bucket's sources. While a step is recorded they are kept anyway.
void GradientMemory::keep_sources(std::size_t bucket, bool is_recorded) {
  if (!is_recorded) sources_.reading(bucket, comm_stream(bucket));
}

void GradientMemory::fill(std::size_t bucket, Filling const& filling) {
  if (!filling.is_recorded) sources_.release_read();  // nothing is read while a step is recorded
  auto const& pieces = plan_->buckets()[bucket].slices;
  bool const direct = filling.may_send_sources && has_arenas() && pieces.size() == 1 && !converts(bucket) &&
                      sources_.of(pieces.front().parameter).data != nullptr;
  from_source_[bucket] = direct ? 1 : 0;
  if (direct) return;
  Stream& stream = comm_stream(bucket);
  bool const in_place = options_.storage == GradientStorage::in_place && !converts(bucket);
  copies_.clear();
  copied_.clear();
  runs_.clear();
  for (BucketSlice const& piece : pieces) {
    std::size_t const p = piece.parameter;
    bool is_there = filling.used[p] != 0;
    TensorView const* from = nullptr;  // null: it lies where it is sent from
    if (options_.storage == GradientStorage::copy) from = &parameters_[p].gradient;
    if (has_arenas() && sources_.of(p).data != nullptr) {
      from = &sources_.of(p);
      is_there = true;  // a kept gradient of an unused parameter, too
    }
    if (from == nullptr && converts(bucket)) from = &gradients_[p];
    TensorView const to = in_place ? slice(parameters_[p].gradient, piece.parameter_offset, piece.count)
                                   : slice(messages_[bucket][0], piece.bucket_offset, piece.count);
    if (!is_there) {
      zero_fill(to, stream);
    } else if (from != nullptr) {
      copies_.push_back({to, slice(*from, piece.parameter_offset, piece.count)});
      copied_.push_back(p);
    } else if (filling.checks != nullptr) {
      runs_.push_back({to, p});
    }
  }
  if (!copies_.empty()) {
    if (filling.checks != nullptr) {
      filling.checks->copy(copies_, copied_);
    } else {
      move_elements(copies_, stream);
    }
    if (has_arenas()) keep_sources(bucket, filling.is_recorded);
  }
  if (filling.checks != nullptr) filling.checks->look(runs_);
}

std::optional<GradientMemory::Direct> GradientMemory::sent_from_source(std::size_t bucket) const {
  if (from_source_[bucket] == 0) return std::nullopt;
  BucketSlice const& piece = plan_->buckets()[bucket].slices.front();
  return Direct{slice(sources_.of(piece.parameter), piece.parameter_offset, piece.count),
                slice(messages_[bucket][0], piece.bucket_offset, piece.count)};
}

void GradientMemory::give_back(std::size_t bucket, std::span<BucketSlice const> slices, bool is_recorded) {
  if (from_source_[bucket] != 0) keep_sources(bucket, is_recorded);
  if (lies_in_message(bucket) || slices.empty()) return;
  copies_.clear();
  for (BucketSlice const& piece : slices) {
    copies_.push_back({slice(gradients_[piece.parameter], piece.parameter_offset, piece.count),
                       slice(messages_[bucket][0], piece.bucket_offset, piece.count)});
  }
  move_elements(copies_, comm_stream(bucket));
}

void GradientMemory::zero() {
  if (has_arenas()) {
    for (Tensor const& arena : arenas_)
      zero_fill(arena, *lane_of(lanes_, arena.view().device).compute_stream);
    return;
  }
  for (TensorView const& gradient : gradients_) {
    zero_fill(gradient, *lane_of(lanes_, gradient.device).compute_stream);
  }
}

void GradientMemory::check_source(std::size_t parameter, TensorView const& source) const {
  TensorView const& value = parameters_[parameter].value;
  auto const name = [&] { return parameter_name(parameters_, parameter); };
  require(has_arenas(), [&] {
    return text("gradient_ready(", parameter, ", source): expected storage = arena, found ",
                to_string(options_.storage), ", with which ", name(),
                " has its gradient in Parameter::gradient: write it there and call gradient_ready(",
                parameter, ")");
  });
  require(source.count() == value.count() && source.dtype == value.dtype && source.device == value.device &&
              (source.data != nullptr || value.count() == 0),
          [&] {
            return text("gradient_ready(", parameter, ", source): expected the gradient of ", name(), ", ",
                        ddp::describe(value), ", found ", source.data == nullptr ? "no memory for " : "",
                        ddp::describe(source),
                        "; pass as many elements of that dtype on that device, in the parameter's order of "
                        "memory");
          });
  auto const* const first = static_cast<std::byte const*>(source.data);
  if (first == gradients_[parameter].data) return;
  for (Tensor const& arena : arenas_) {
    auto const* const begin = static_cast<std::byte const*>(arena.view().data);
    require(std::less<>{}(first, begin) || !std::less<>{}(first, begin + arena.view().bytes()), [&] {
      return text("gradient_ready(", parameter,
                  ", source): the source lies among the buckets, but not where the gradient of ", name(),
                  " is bound; use what bind_gradient was given last");
    });
  }
}

}  // namespace ddp
