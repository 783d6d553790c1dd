#include "reducer/memory/gradient_memory.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <sstream>
#include <utility>

#include "ddp/core/text.hpp"
#include "ddp/device/tensor_ops.hpp"
#include "reducer/checks/parameter_check.hpp"

namespace ddp {
namespace {

// Gradients of a bucket that are sent as one message, where the program keeps them.
struct InPlaceMessage {
  TensorView memory;
  std::vector<BucketSlice const*> slices;
};

// One message for each slice, in the plan's order. With `merge`, neighbours in memory share one, in the order
// of addresses.
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
Tensor allocate(Bytes bytes, ReducerLane const& lane, ReducerOptions const& options) {
  if (!options.allocate) return lane.communicator->allocate(bytes);
  Tensor memory = options.allocate(bytes, lane.device);
  TensorView const& view = memory.view();
  auto const address = reinterpret_cast<std::uintptr_t>(view.data);
  require(view.device == lane.device && view.bytes() >= bytes.value && address % BucketPlan::kAlignment == 0,
          [&] {
            return text("ReducerOptions::allocate was asked for ", bytes.value, " B on ", lane.device,
                        ", aligned to ", BucketPlan::kAlignment, " B, and gave ", describe(view),
                        " at address ", view.data);
          });
  require_memory([] { return "what ReducerOptions::allocate gave"; }, view);
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
  Classic<std::ostringstream> layout;
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
    Bytes const bytes{arena.count * size_of(arena.dtype)};
    Tensor const memory = allocate(bytes, lane_of(lanes, arena.device), options);
    TensorView const view{memory.view().data, Shape{arena.count}, arena.dtype, arena.device};
    arenas_.emplace_back(view, std::make_shared<Tensor>(memory));
  }
}

// One for each device, as large as its largest bucket needs: buckets pass through it in order.
void GradientMemory::make_conversion_buffers(BucketPlan const& plan, ReducerOptions const& options,
                                             std::span<ReducerLane const> lanes,
                                             GradientMemory const* previous) {
  if (previous != nullptr) conversion_buffers_ = previous->conversion_buffers_;
  if (!options.reduce_dtype) return;
  for (ReducerLane const& lane : lanes) {
    std::size_t most = 0;
    std::set<DType> converted;
    for (Bucket const& bucket : plan.buckets()) {
      if (!(bucket.device == lane.device) || bucket.dtype == *options.reduce_dtype) continue;
      most = std::max(most, bucket.count);
      converted.insert(bucket.dtype);
    }
    if (most == 0) continue;
    TensorView const* const known = conversion_buffer(lane.device);
    if (known != nullptr && known->count() >= most) continue;
    most = std::max(most, BucketPlan::kAlignment);  // room for what follows
    Tensor const memory = allocate(Bytes{most * size_of(*options.reduce_dtype)}, lane, options);
    TensorView const view{memory.view().data, Shape{most}, *options.reduce_dtype, lane.device};
    conversion_buffers_.emplace_back(view, std::make_shared<Tensor>(memory));
    // A kernel's first launch may wait for work of other ranks: so now, between two zeros.
    for (DType const dtype : converted) {
      TensorView const narrow = slice(view, 0, 1);
      TensorView const wide{static_cast<std::byte*>(view.data) + BucketPlan::kAlignment, Shape{1}, dtype,
                            lane.device};
      convert_elements(std::array{Copy{narrow, wide}}, *lane.compute_stream);
      convert_elements(std::array{Copy{wide, narrow}}, *lane.compute_stream);
    }
  }
}

TensorView const* GradientMemory::conversion_buffer(Device device) const noexcept {
  auto const last = std::find_if(conversion_buffers_.rbegin(), conversion_buffers_.rend(),
                                 [&](Tensor const& buffer) { return buffer.view().device == device; });
  return last == conversion_buffers_.rend() ? nullptr : &last->view();
}

void move_elements(std::span<Copy const> copies, Stream& stream) {
  if (copies[0].to.dtype == copies[0].from.dtype) {
    copy_elements(copies, stream);
  } else {
    convert_elements(copies, stream);
  }
}

GradientMemory::GradientMemory(BucketPlan const& plan, std::span<Parameter const> parameters,
                               ReducerOptions const& options, std::span<ReducerLane const> lanes, bool merge,
                               GradientMemory const* previous) {
  GradientStorage const storage = options.storage;
  if (storage != GradientStorage::in_place) make_arenas(plan, options, lanes, previous);
  make_conversion_buffers(plan, options, lanes, previous);
  for (Bucket const& bucket : plan.buckets()) {
    if (options.reduce_dtype && bucket.dtype != *options.reduce_dtype) {
      messages_.push_back({slice(*conversion_buffer(bucket.device), 0, bucket.count)});
    } else if (storage == GradientStorage::in_place) {
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
