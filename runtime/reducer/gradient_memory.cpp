#include "reducer/gradient_memory.hpp"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <sstream>
#include <utility>

#include "ddp/core/text.hpp"
#include "ddp/device/tensor_ops.hpp"
#include "reducer/parameter_check.hpp"

namespace ddp {
namespace {

// Gradients of a bucket that are sent as one message, where the program keeps them.
struct InPlaceMessage {
  TensorView memory;
  std::vector<BucketSlice const*> slices;
};

// One message for each slice, in the plan's order; or neighbours in memory joined, in the order of their
// addresses.
std::vector<InPlaceMessage> in_place_messages(Bucket const& bucket, std::span<Parameter const> parameters,
                                              bool merge) {
  std::vector<InPlaceMessage> messages;
  for (BucketSlice const& piece : bucket.slices) {
    messages.push_back(
        {slice(parameters[piece.parameter].gradient, piece.parameter_offset, piece.count), {&piece}});
  }
  if (!merge) return messages;
  std::sort(messages.begin(), messages.end(), [](InPlaceMessage const& a, InPlaceMessage const& b) {
    return std::less<>{}(a.memory.data, b.memory.data);
  });
  std::vector<InPlaceMessage> merged;
  for (InPlaceMessage const& message : messages) {
    bool const touches = !merged.empty() &&
                         static_cast<std::byte*>(merged.back().memory.data) + merged.back().memory.bytes() ==
                             message.memory.data;
    if (touches) {
      InPlaceMessage& last = merged.back();
      last.memory.shape = Shape{last.memory.count() + message.memory.count()};
      last.slices.push_back(message.slices.front());
    } else {
      merged.push_back(message);
    }
  }
  return merged;
}

// Zeroed, for any stream.
Tensor make_arena(Arena const& arena, ReducerLane const& lane, ReducerOptions const& options) {
  Bytes const bytes{arena.count * size_of(arena.dtype)};
  if (!options.allocate) return lane.communicator->allocate(bytes);
  Tensor memory = options.allocate(bytes, arena.device);
  TensorView const& view = memory.view();
  auto const address = reinterpret_cast<std::uintptr_t>(view.data);
  require(view.device == arena.device && view.bytes() >= bytes.value && address % BucketPlan::kAlignment == 0,
          [&] {
            return text("ReducerOptions::allocate was asked for ", bytes.value, " B on ", arena.device,
                        ", aligned to ", BucketPlan::kAlignment, " B, and gave ", describe(view),
                        " at address ", view.data);
          });
  require_memory("what ReducerOptions::allocate gave", view);
  zero_fill({view.data, Shape{bytes.value}, DType::u8, view.device}, *lane.compute_stream);
  lane.compute_stream->synchronize();
  return memory;
}

}  // namespace

ReducerLane const& lane_of(std::span<ReducerLane const> lanes, Device device) {
  auto const found = std::find_if(lanes.begin(), lanes.end(),
                                  [&](ReducerLane const& lane) { return lane.device == device; });
  require(found != lanes.end(),
          [&] { return text("a parameter lies on ", device, ", and there is no communicator for it"); });
  return *found;
}

std::string message_layout(BucketPlan const& plan, std::span<Parameter const> parameters) {
  std::ostringstream layout;
  for (Bucket const& bucket : plan.buckets()) {
    for (InPlaceMessage const& message : in_place_messages(bucket, parameters, true)) {
      for (BucketSlice const* const piece : message.slices) layout << piece->parameter << ' ';
      layout << '|';
    }
    layout << '\n';
  }
  return std::move(layout).str();
}

// A gradient takes a whole number of aligned pieces, so an arena has the same size in every order.
void GradientMemory::make_arenas(BucketPlan const& plan, ReducerOptions const& options,
                                 std::span<ReducerLane const> lanes, GradientMemory const* previous) {
  for (Arena const& arena : plan.arenas()) {
    if (previous != nullptr) {
      auto const same = [&](Tensor const& old) {
        return old.view().dtype == arena.dtype && old.view().device == arena.device;
      };
      auto const old = std::find_if(previous->arenas_.begin(), previous->arenas_.end(), same);
      require(old != previous->arenas_.end() && old->view().count() == arena.count,
              "a plan of the same gradients in another order has other arenas");
      arenas_.push_back(*old);
      continue;
    }
    Tensor const memory = make_arena(arena, lane_of(lanes, arena.device), options);
    TensorView const view{memory.view().data, Shape{arena.count}, arena.dtype, arena.device};
    arenas_.emplace_back(view, std::make_shared<Tensor>(memory));
  }
}

GradientMemory::GradientMemory(BucketPlan const& plan, std::span<Parameter const> parameters,
                               ReducerOptions const& options, std::span<ReducerLane const> lanes, bool merge,
                               GradientMemory const* previous) {
  GradientStorage const storage = options.storage;
  if (storage != GradientStorage::in_place) make_arenas(plan, options, lanes, previous);
  for (Bucket const& bucket : plan.buckets()) {
    if (storage == GradientStorage::in_place) {
      auto& messages = messages_.emplace_back();
      for (InPlaceMessage const& message : in_place_messages(bucket, parameters, merge)) {
        messages.push_back(message.memory);
      }
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
  }
}

void GradientMemory::take_gradients(GradientMemory const& previous,
                                    std::span<ReducerLane const> lanes) const {
  for (Tensor const& arena : arenas_) {
    TensorView const view = arena.view();
    Stream& stream = *lane_of(lanes, view.device).compute_stream;
    Tensor const saved = Tensor::zeros(view.shape, view.dtype);
    copy_elements(saved, arena, stream);
    stream.synchronize();
    zero_fill(arena, stream);
    for (std::size_t p = 0; p < gradients_.size(); ++p) {
      auto const* const from = static_cast<std::byte*>(previous.gradients_[p].data);
      auto const distance = from - static_cast<std::byte*>(view.data);
      if (gradients_[p].device != view.device || distance < 0 ||
          static_cast<std::size_t>(distance) >= view.bytes()) {
        continue;  // of another arena
      }
      TensorView old = gradients_[p];
      old.data = static_cast<std::byte*>(saved.view().data) + distance;
      old.device = Device{};
      copy_elements(gradients_[p], old, stream);
    }
    stream.synchronize();
  }
}

}  // namespace ddp
