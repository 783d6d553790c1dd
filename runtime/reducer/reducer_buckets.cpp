// How a complete bucket is filled, reduced and handed back.
#include <cstddef>
#include <exception>
#include <string_view>

#include "ddp/core/text.hpp"
#include "ddp/device/tensor_ops.hpp"
#include "reducer/reducer_impl.hpp"

namespace ddp {

void Reducer::Impl::launch_complete_buckets() {
  while (launched_ < tracker_.launchable()) {
    std::size_t const first = launched_;
    launched_ = end_of_run(first);
    launch(first, launched_);
  }
}

// The buckets that become complete together with this one on every rank: they hold nothing but the rest of
// its last parameter. One launch of NCCL's for all is faster than one after the other.
std::size_t Reducer::Impl::end_of_run(std::size_t first) const {
  auto const buckets = plan_->buckets();
  std::size_t end = first + 1;
  if (hook_.reduce) return end;
  for (; end < buckets.size() && !converts(end); ++end) {
    BucketSlice const& piece = buckets[end].slices.front();
    bool const goes_on = buckets[end].slices.size() == 1 && piece.parameter_offset > 0 &&
                         piece.parameter == buckets[first].slices.back().parameter;
    // The last bucket waits for parameters without elements too.
    if (!goes_on || (end + 1 == buckets.size() && has_empty_parameters_)) break;
  }
  return end;
}

void Reducer::Impl::launch(std::size_t first, std::size_t end) {
  std::size_t const lane_index = bucket_lanes_[first];
  ReducerLane const& lane = lanes_[lane_index];
  bool const last = end == plan_->buckets().size();
  ReduceOp op = options_.reduction == ReducerOptions::Reduction::sum ? ReduceOp::sum() : ReduceOp::average();
  if (weight_ >= 0) op = ReduceOp::scaled_sum(heads_[lane_index]->factor());

  lane.communicator->annotate("bucket", first);
  lane.comm_stream->wait(*lane.compute_stream);
  if (statistics_) statistics_->times().bucket_begun(first);
  for (std::size_t b = first; b < end; ++b) fill(b);
  if (hook_.reduce) {
    run_hook(first, op);
    if (last) launch_tail();
  } else if (end == first + 1 && memory_.messages(first).size() == 1 && !last) {
    reduce(first, op);
  } else {
    Communicator::Group const group(*lane.communicator);
    for (std::size_t b = first; b < end; ++b) reduce(b, op);
    if (last) launch_tail();
  }
  for (std::size_t b = first; b < end; ++b) {
    if (sends_source(b)) keep_sources(b);
    if (options_.storage == GradientStorage::copy || converts(b)) copy_back(b);
    if (clips()) checks_->add_squares(averages(b));
    if (statistics_ && b > first) statistics_->times().bucket_begun(b);  // their time is the first one's
    if (statistics_) statistics_->times().bucket_done(b);
    if (update_ && !checks_) update(b);
  }
}

// A bucket that is a part of one gradient, which lies elsewhere, need not be copied first. With weights it
// is: how NCCL scales depends on whether it works in place, and ranks must do the same.
bool Reducer::Impl::sends_source(std::size_t bucket) const {
  auto const& slices = plan_->buckets()[bucket].slices;
  if (options_.storage != GradientStorage::arena || checks_ || hook_.reduce || weight_ >= 0 ||
      slices.size() != 1 || converts(bucket)) {
    return false;
  }
  return sources_.of(slices.front().parameter).data != nullptr;
}

void Reducer::Impl::reduce(std::size_t bucket, ReduceOp op) {
  ReducerLane const& lane = lanes_[bucket_lanes_[bucket]];
  for (TensorView const& message : memory_.messages(bucket)) {
    if (sends_source(bucket)) {
      BucketSlice const& piece = plan_->buckets()[bucket].slices.front();
      TensorView const from = slice(sources_.of(piece.parameter), piece.parameter_offset, piece.count);
      lane.communicator->all_reduce(from, slice(message, piece.bucket_offset, piece.count), op,
                                    *lane.comm_stream);
    } else {
      lane.communicator->all_reduce(message, op, *lane.comm_stream);
    }
  }
}

// What is enqueued reads them. While a step is recorded they are kept anyway.
void Reducer::Impl::keep_sources(std::size_t bucket) {
  if (recording_ == nullptr) sources_.reading(bucket, *lanes_[bucket_lanes_[bucket]].comm_stream);
}

// Says where an exception of the program's own came from.
template <class Call>
void Reducer::Impl::call_program(std::size_t bucket, std::string_view what, Call const& call) const {
  auto const failed = [&](std::string_view why) {
    return Error(ErrorCode::invalid_state,
                 text(what, " threw at bucket ", bucket, " of synchronised step ", steps_, ": ", why));
  };
  try {
    call();
  } catch (CommError const&) {
    throw;  // a rank has failed, and the error says which
  } catch (std::exception const& error) {
    throw failed(error.what());
  } catch (...) {
    throw failed("something that is no std::exception");
  }
}

void Reducer::Impl::run_hook(std::size_t bucket, ReduceOp op) {
  ReducerLane const& lane = lanes_[bucket_lanes_[bucket]];
  auto const buckets = plan_->buckets();
  call_program(bucket, hook_.name, [&] {
    hook_.reduce({bucket, buckets.size(), memory_.messages(bucket), buckets[bucket].slices, parameters_, op,
                  *lane.communicator, *lane.comm_stream});
  });
}

void Reducer::Impl::update(std::size_t bucket) {
  Stream& stream = *update_streams_[bucket_lanes_[bucket]];
  auto const buckets = plan_->buckets();
  stream.wait(*lanes_[bucket_lanes_[bucket]].comm_stream);
  call_program(bucket, "what on_bucket_ready() was given", [&] {
    update_({bucket, buckets.size(), buckets[bucket].slices, tracker_.used(), stream});
  });
}

void Reducer::Impl::launch_tail() {
  if (say_) say_(used_[tail_lane_].flags());
  // What a rank without weight has not used is no error, as of one in join().
  bool const is_exempt = joined_ || (weight_ == 0 && options_.unused == ReducerOptions::Unused::error);
  used_[tail_lane_].exchange(is_exempt ? std::span<std::uint8_t const>(all_used_) : tracker_.used());
  if (checks_) checks_->exchange(weight_ >= 0 ? &heads_[tail_lane_]->factor() : nullptr);
  if (statistics_) recording_ == nullptr ? statistics_->exchange(tail_lane_) : statistics_->send(tail_lane_);
  answering_lane_ = tail_lane_;
  tail_launched_ = true;
}

void Reducer::Impl::tell_with_tail(std::size_t flags, TellFlags say) {
  require_usable();
  require(steps_ == 0 && !in_step_, "tell_with_tail() after the first step has begun");
  for (UsedParameters& used : used_) used.carry(flags);
  told_.assign(flags, 0);
  say_ = std::move(say);
}

// On a CPU the tail of this step is through. On a GPU the host runs ahead: what it knows is that of the last
// step, for which it has waited when this one began, with a forward pass enqueued behind it.
std::span<std::uint8_t const> Reducer::Impl::told_with_tail() {
  require_usable();
  if (say_ && lanes_[answering_lane_].device.kind == DeviceKind::cpu) hear_flags();
  return told_;
}

void Reducer::Impl::hear_flags() {
  UsedParameters& tail = used_[answering_lane_];
  tail.fetch();
  for (std::size_t f = 0; f < told_.size(); ++f) told_[f] = tail.by_any(parameters_.size() + f) ? 1 : 0;
}

// What is not written where it is sent from: gradients that lie elsewhere, and zeros for unused ones. In copy
// mode the program's gradient stays as it is: its place in the bucket is zeroed instead.
void Reducer::Impl::fill(std::size_t bucket) {
  if (recording_ == nullptr) sources_.release_read();  // nothing is read while a step is recorded
  if (sends_source(bucket)) return;
  Stream& stream = *lanes_[bucket_lanes_[bucket]].comm_stream;
  copies_.clear();
  copied_.clear();
  runs_.clear();
  for (BucketSlice const& piece : plan_->buckets()[bucket].slices) {
    std::size_t const p = piece.parameter;
    bool is_there = tracker_.used()[p] != 0;
    TensorView const* from = nullptr;  // null: it lies where it is sent from
    if (options_.storage == GradientStorage::copy) from = &parameters_[p].gradient;
    if (options_.storage == GradientStorage::arena && sources_.of(p).data != nullptr) {
      from = &sources_.of(p);
      is_there = true;  // one that was kept is not used
    }
    if (from == nullptr && converts(bucket)) from = &memory_.gradient(p);
    TensorView const to = options_.storage == GradientStorage::in_place && !converts(bucket)
                              ? slice(parameters_[p].gradient, piece.parameter_offset, piece.count)
                              : slice(memory_.messages(bucket)[0], piece.bucket_offset, piece.count);
    if (!is_there) {
      zero_fill(to, stream);
    } else if (from != nullptr) {
      copies_.push_back({to, slice(*from, piece.parameter_offset, piece.count)});
      copied_.push_back(p);
    } else if (checks_) {
      runs_.push_back({to, p});
    }
  }
  if (!copies_.empty()) {
    if (checks_) {
      checks_->copy(copies_, copied_);
    } else {
      move_elements(copies_, stream);
    }
    if (options_.storage == GradientStorage::arena) keep_sources(bucket);
  }
  if (checks_) checks_->look(runs_);
}

void Reducer::Impl::copy_back(std::size_t bucket) {
  copies_.clear();
  for (BucketSlice const& piece : plan_->buckets()[bucket].slices) {
    copies_.push_back({slice(memory_.gradient(piece.parameter), piece.parameter_offset, piece.count),
                       slice(memory_.messages(bucket)[0], piece.bucket_offset, piece.count)});
  }
  move_elements(copies_, *lanes_[bucket_lanes_[bucket]].comm_stream);
}

}  // namespace ddp
