#include "reducer/gradient_memory.hpp"

#include <algorithm>
#include <functional>
#include <memory>

#include "ddp/core/text.hpp"
#include "ddp/device/tensor_ops.hpp"

namespace ddp {
namespace {

// The slices of a bucket where the program keeps them, in the order of their addresses, neighbours joined.
std::vector<TensorView> in_place_messages(Bucket const& bucket, std::span<Parameter const> parameters,
                                          bool merge) {
  std::vector<TensorView> messages;
  for (BucketSlice const& piece : bucket.slices) {
    messages.push_back(slice(parameters[piece.parameter].gradient, piece.parameter_offset, piece.count));
  }
  if (!merge) return messages;
  std::sort(messages.begin(), messages.end(),
            [](TensorView const& a, TensorView const& b) { return std::less<>{}(a.data, b.data); });
  std::vector<TensorView> merged;
  for (TensorView const& message : messages) {
    bool const touches = !merged.empty() &&
                         static_cast<std::byte*>(merged.back().data) + merged.back().bytes() == message.data;
    if (touches) {
      merged.back().shape = Shape{merged.back().count() + message.count()};
    } else {
      merged.push_back(message);
    }
  }
  return merged;
}

}  // namespace

ReducerLane const& lane_of(std::span<ReducerLane const> lanes, Device device) {
  auto const found = std::find_if(lanes.begin(), lanes.end(),
                                  [&](ReducerLane const& lane) { return lane.device == device; });
  require(found != lanes.end(),
          [&] { return text("a parameter lies on ", device, ", and there is no communicator for it"); });
  return *found;
}

std::string message_lengths(BucketPlan const& plan, std::span<Parameter const> parameters) {
  std::vector<std::size_t> lengths;
  for (Bucket const& bucket : plan.buckets()) {
    for (TensorView const& message : in_place_messages(bucket, parameters, true))
      lengths.push_back(message.count());
    lengths.push_back(0);
  }
  return join(lengths, " ");
}

void GradientMemory::make_arenas(BucketPlan const& plan, std::span<ReducerLane const> lanes) {
  for (Arena const& arena : plan.arenas()) {
    auto const& lane = lane_of(lanes, arena.device);
    Tensor const memory = lane.communicator->allocate(Bytes{arena.count * size_of(arena.dtype)});
    TensorView const view{memory.view().data, Shape{arena.count}, arena.dtype, arena.device};
    arenas_.emplace_back(view, std::make_shared<Tensor>(memory));
    keys_.push_back(arena);
  }
}

GradientMemory::GradientMemory(BucketPlan const& plan, std::span<Parameter const> parameters,
                               GradientStorage storage, std::span<ReducerLane const> lanes, bool merge,
                               GradientMemory const* previous) {
  if (storage != GradientStorage::in_place) make_arenas(plan, lanes);
  for (Bucket const& bucket : plan.buckets()) {
    if (storage == GradientStorage::in_place) {
      messages_.push_back(in_place_messages(bucket, parameters, merge));
    } else {
      messages_.push_back({slice(arenas_[bucket.arena], bucket.arena_offset, bucket.count)});
    }
  }
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    if (storage != GradientStorage::arena) {
      gradients_.push_back(parameters[p].gradient);
      continue;
    }
    TensorView view = slice(arenas_[plan.arena_of(p)], plan.arena_offset(p), parameters[p].value.count());
    view.shape = parameters[p].value.shape;
    gradients_.push_back(view);
    if (previous != nullptr) {
      ReducerLane const& lane = lane_of(lanes, view.device);
      copy_elements(view, previous->gradient(p), *lane.compute_stream);
    }
  }
}

}  // namespace ddp
