#include "reducer/memory/gradient_memory.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <set>

#include "ddp/core/text.hpp"
#include "reducer/checks/parameter_check.hpp"
#include "reducer/memory/in_place_messages.hpp"

namespace ddp {
namespace {

// Zeroed, for any stream.
Tensor allocate(Bytes bytes, ReducerLane const& lane, GradientMemory::Options const& options) {
  if (!options.allocate) return lane.communicator->allocate(bytes);
  Tensor memory = options.allocate(bytes, lane.device);
  TensorView const& view = memory.view();
  auto const address = reinterpret_cast<std::uintptr_t>(view.data);
  require(view.device == lane.device && view.bytes() >= bytes.value && address % BucketPlan::kAlignment == 0,
          [&] {
            return text("Options::allocate was asked for ", bytes.value, " B on ", lane.device,
                        ", aligned to ", BucketPlan::kAlignment, " B, and gave ", describe(view),
                        " at address ", view.data);
          });
  require_memory([] { return "what Options::allocate gave"; }, view);
  zero_fill({view.data, Shape{bytes.value}, DType::u8, view.device}, *lane.compute_stream);
  lane.compute_stream->synchronize();
  return memory;
}

}  // namespace

std::string GradientMemory::describe() const {
  return text("storage ", to_string(options_.storage), ", sent as ",
              options_.reduce_dtype ? to_string(*options_.reduce_dtype) : "they are",
              options_.allocate ? ", memory of Options::allocate" : "");
}

// A gradient takes a whole number of aligned pieces, so an arena has the same size in every order.
std::vector<Tensor> GradientMemory::arenas_of(BucketPlan const& plan) const {
  if (arenas_.empty()) return make_arenas(plan);
  std::vector<Tensor> arenas;
  for (Arena const& arena : plan.arenas()) {
    auto const same = [&](Tensor const& old) {
      return old.view().dtype == arena.dtype && old.view().device == arena.device;
    };
    auto const old = std::ranges::find_if(arenas_, same);
    require(old != arenas_.end() && old->view().count() == arena.count,
            "a plan of the same gradients in another order has other arenas");
    arenas.push_back(*old);
  }
  return arenas;
}

std::vector<Tensor> GradientMemory::make_arenas(BucketPlan const& plan) const {
  std::vector<Tensor> arenas;
  for (Arena const& arena : plan.arenas()) {
    Bytes const bytes{arena.count * size_of(arena.dtype)};
    Tensor const memory = allocate(bytes, lane_of(lanes_, arena.device), options_);
    TensorView const view{memory.view().data, Shape{arena.count}, arena.dtype, arena.device};
    arenas.emplace_back(view, std::make_shared<Tensor>(memory));
  }
  return arenas;
}

TensorView GradientMemory::bucket(std::size_t index) const {
  Bucket const& all = plan_->buckets()[index];
  return slice(arenas_[all.arena], all.arena_offset, all.count);
}

// One for each device, as large as its largest bucket needs: buckets pass through it in order.
void GradientMemory::make_conversion_buffers(BucketPlan const& plan) {
  std::optional<DType> const to = options_.reduce_dtype;
  if (!to) return;
  for (ReducerLane const& lane : lanes_) {
    std::size_t most = 0;
    std::set<DType> converted;
    for (Bucket const& bucket : plan.buckets()) {
      if (!(bucket.device == lane.device) || bucket.dtype == *to) continue;
      most = std::max(most, bucket.count);
      converted.insert(bucket.dtype);
    }
    if (most == 0) continue;
    TensorView const* const known = conversion_buffer(lane.device);
    if (known != nullptr && known->count() >= most) continue;
    most = std::max(most, BucketPlan::kAlignment);  // room for what follows
    Tensor const memory = allocate(Bytes{most * size_of(*to)}, lane, options_);
    TensorView const view{memory.view().data, Shape{most}, *to, lane.device};
    conversion_buffers_.emplace_back(view, std::make_shared<Tensor>(memory));
    // A kernel's first launch may wait for work of other ranks, so launch it now, on two zeros.
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

// What may throw comes first, so that a rebuild that fails leaves the memory of the earlier plan.
void GradientMemory::plan_changed(BucketPlan const& plan, bool merge) {
  bool const moves = plan_ != nullptr && has_arenas();
  if (options_.storage != GradientStorage::in_place) arenas_ = arenas_of(plan);
  make_conversion_buffers(plan);
  std::vector<TensorView> const before = std::exchange(gradients_, {});
  plan_ = &plan;
  messages_.clear();
  for (Bucket const& bucket : plan.buckets()) {
    if (options_.reduce_dtype && bucket.dtype != *options_.reduce_dtype) {
      messages_.push_back({slice(*conversion_buffer(bucket.device), 0, bucket.count)});
    } else if (options_.storage == GradientStorage::in_place) {
      auto& messages = messages_.emplace_back();
      for (InPlaceMessage const& message : in_place_messages(bucket, parameters_, merge)) {
        messages.push_back(message.memory);
      }
    } else {
      messages_.push_back({slice(arenas_[bucket.arena], bucket.arena_offset, bucket.count)});
    }
  }
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    if (!has_arenas()) {
      gradients_.push_back(parameters_[p].gradient);
      continue;
    }
    TensorView view = slice(arenas_[plan.arena_of(p)], plan.arena_offset(p), parameters_[p].value.count());
    view.shape = parameters_[p].value.shape;
    gradients_.push_back(view);
  }
  if (moves) take_gradients(before);
  from_source_.assign(plan.buckets().size(), 0);
  for (Bucket const& bucket : plan.buckets()) {
    copies_.reserve(bucket.slices.size());
    copied_.reserve(bucket.slices.size());
    runs_.reserve(bucket.slices.size());
  }
  if (!claim_) claim_.emplace(name_, parameters_, has_arenas());
  if (!has_arenas()) return;
  sources_ = GradientSources(plan, parameters_.size());
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    parameters_[p].bind_gradient({gradients_[p], std::make_shared<Tensor>(arenas_[plan.arena_of(p)])});
  }
}

// The host waits for the compute streams.
void GradientMemory::take_gradients(std::span<TensorView const> from) const {
  for (Tensor const& arena : arenas_) {
    TensorView const view = arena.view();
    Stream& stream = *lane_of(lanes_, view.device).compute_stream;
    Tensor const saved = Tensor::zeros(view.shape, view.dtype);
    copy_elements(saved, arena, stream);
    stream.synchronize();
    zero_fill(arena, stream);
    for (std::size_t p = 0; p < gradients_.size(); ++p) {
      auto const distance = static_cast<std::byte*>(from[p].data) - static_cast<std::byte*>(view.data);
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
