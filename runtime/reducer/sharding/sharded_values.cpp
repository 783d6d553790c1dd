#include "reducer/sharding/sharded_values.hpp"

#include <algorithm>
#include <utility>

#include "ddp/core/text.hpp"
#include "ddp/device/tensor_ops.hpp"
#include "reducer/call_program.hpp"

namespace ddp {
namespace {

// An eighth leaves little to send when the last update is over, and a launch this large is as fast as any.
std::size_t bytes_of_a_gather(std::span<Tensor const> arenas) {
  constexpr std::size_t kMost = std::size_t{128} << 20;
  std::size_t all = 0;
  for (Tensor const& arena : arenas) all += arena.view().bytes();
  return std::min(kMost, all / 8);
}

}  // namespace

ShardedValues::ShardedValues(ReducerState& state, std::vector<Tensor> arenas)
    : of_(state),
      arenas_(std::move(arenas)),
      bytes_of_a_gather_(bytes_of_a_gather(arenas_)),
      updated_(state.lanes.size()) {
  move_values(state);
  cut();
  for (auto& buckets : updated_) buckets.reserve(of_.buckets.count());
}

// A program may free the old memory as soon as it knows the new one, so the copies come first.
void ShardedValues::move_values(ReducerState& state) const {
  BucketPlan const& plan = of_.buckets.plan();
  std::vector<TensorView> places;
  for (std::size_t p = 0; p < state.parameters.size(); ++p) {
    TensorView const& now = state.parameters[p].value;
    TensorView place = slice(arenas_[plan.arena_of(p)], plan.arena_offset(p), now.count());
    if (now.count() > 0) copy_elements(place, now, *lane_of(of_.lanes, now.device).compute_stream);
    place.shape = now.shape;
    places.push_back(place);
  }
  for (ReducerLane const& lane : of_.lanes) lane.compute_stream->synchronize();
  for (std::size_t p = 0; p < places.size(); ++p) {
    Parameter& parameter = state.parameters[p];
    state.memory.move_claim(parameter.value, places[p]);
    parameter.value = places[p];
    parameter.bind_value({places[p], std::make_shared<Tensor>(arenas_[plan.arena_of(p)])});
  }
}

TensorView ShardedValues::values(std::size_t bucket) const {
  Bucket const& all = of_.buckets[bucket];
  return slice(arenas_[all.arena], all.arena_offset, all.count);
}

// What this rank has of each bucket, cut where another group of parameters begins.
void ShardedValues::cut() {
  for (std::size_t b = 0; b < of_.buckets.count(); ++b) {
    first_slices_.push_back(slices_.size());
    for (BucketSlice const& piece : of_.buckets.own_slices(b)) {
      std::size_t const group = of_.parameters[piece.parameter].group;
      if (first_slices_.back() == slices_.size() || slices_.back().group != group) {
        slices_.push_back({.index = slices_.size(), .bucket = b, .group = group, .pieces = {}});
      }
      slices_.back().pieces.push_back(piece);
    }
  }
  first_slices_.push_back(slices_.size());
  for (Slice& each : slices_) {
    std::size_t const begin = each.pieces.front().bucket_offset;
    std::size_t const count = each.pieces.back().bucket_offset + each.pieces.back().count - begin;
    for (BucketSlice& piece : each.pieces) piece.bucket_offset -= begin;
    each.values = slice(values(each.bucket), begin, count);
    each.gradient = slice(of_.memory.bucket(each.bucket), begin, count);
  }
}

void ShardedValues::update(std::size_t bucket, SliceReady const& update, Stream& stream) const {
  for (std::size_t s = first_slices_[bucket]; s < first_slices_[bucket + 1]; ++s) update(slices_[s], stream);
}

bool ShardedValues::fill_a_gather(std::size_t lane) const {
  std::size_t bytes = 0;
  for (std::size_t const bucket : updated_[lane]) bytes += values(bucket).bytes();
  return bytes >= bytes_of_a_gather_;
}

void ShardedValues::gather(std::size_t lane) {
  ReducerLane const& on = of_.lanes[lane];
  for (std::size_t const bucket : updated_[lane]) {
    TensorView const all = values(bucket);
    auto const [begin, count] = of_.buckets.own_part(bucket);
    on.communicator->all_gather(slice(all, begin, count), all, *on.comm_stream);
  }
  updated_[lane].clear();
}

}  // namespace ddp
