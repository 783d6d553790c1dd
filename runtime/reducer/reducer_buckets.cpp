// How a complete bucket is filled, reduced and handed back.
#include <cstddef>
#include <exception>
#include <string_view>

#include "ddp/core/text.hpp"
#include "ddp/device/tensor_ops.hpp"
#include "reducer/reducer_impl.hpp"

namespace ddp {

void Reducer::Impl::launch_complete_buckets() {
  while (launched_ < tracker_.launchable()) launch(launched_++);
}

void Reducer::Impl::launch(std::size_t bucket) {
  std::size_t const lane_index = bucket_lanes_[bucket];
  ReducerLane const& lane = lanes_[lane_index];
  auto const messages = memory_.messages(bucket);
  bool const last = bucket + 1 == plan_->buckets().size();
  ReduceOp op = options_.reduction == ReducerOptions::Reduction::sum ? ReduceOp::sum() : ReduceOp::average();
  if (weight_ >= 0) op = ReduceOp::scaled_sum(heads_[lane_index]->factor());

  lane.communicator->annotate("bucket", bucket);
  lane.comm_stream->wait(*lane.compute_stream);
  if (statistics_) statistics_->times().bucket_begun(bucket);
  fill(bucket);
  if (hook_.reduce) {
    run_hook(bucket, op);
    if (last) launch_tail();
  } else if (messages.size() == 1 && !last) {
    lane.communicator->all_reduce(messages[0], op, *lane.comm_stream);
  } else {
    Communicator::Group const group(*lane.communicator);
    for (TensorView const& message : messages) lane.communicator->all_reduce(message, op, *lane.comm_stream);
    if (last) launch_tail();
  }
  if (options_.storage == GradientStorage::copy || converts(bucket)) copy_back(bucket);
  if (clips()) checks_->add_squares(averages(bucket));
  if (statistics_) statistics_->times().bucket_done(bucket);
  if (update_ && !checks_) update(bucket);
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
  used_[tail_lane_].exchange(joined_ ? std::span<std::uint8_t const>(all_used_) : tracker_.used());
  if (checks_) checks_->exchange();
  if (statistics_) recording_ == nullptr ? statistics_->exchange(tail_lane_) : statistics_->send(tail_lane_);
  answering_lane_ = tail_lane_;
  tail_launched_ = true;
}

// What is not written where it is sent from: gradients that lie elsewhere, and zeros for unused ones. In copy
// mode the program's gradient stays as it is: its place in the bucket is zeroed instead.
void Reducer::Impl::fill(std::size_t bucket) {
  if (recording_ == nullptr) sources_.release_copied();  // nothing is copied while a step is recorded
  Stream& stream = *lanes_[bucket_lanes_[bucket]].comm_stream;
  copies_.clear();
  copied_.clear();
  runs_.clear();
  for (BucketSlice const& piece : plan_->buckets()[bucket].slices) {
    std::size_t const p = piece.parameter;
    bool const is_used = tracker_.used()[p] != 0;
    TensorView const* from = nullptr;  // null: it lies where it is sent from
    if (options_.storage == GradientStorage::copy) from = &parameters_[p].gradient;
    if (options_.storage == GradientStorage::arena && sources_.of(p).data != nullptr) from = &sources_.of(p);
    if (from == nullptr && converts(bucket)) from = &memory_.gradient(p);
    TensorView const to = options_.storage == GradientStorage::in_place && !converts(bucket)
                              ? slice(parameters_[p].gradient, piece.parameter_offset, piece.count)
                              : slice(memory_.messages(bucket)[0], piece.bucket_offset, piece.count);
    if (!is_used) {
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
    if (options_.storage == GradientStorage::arena && recording_ == nullptr) sources_.copying(bucket, stream);
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
