#include "reducer/memory/coalesced_tensors.hpp"

#include <algorithm>

#include "core/round_up.hpp"
#include "ddp/device/memory.hpp"
#include "ddp/reducer/bucket_plan.hpp"

namespace ddp {

FlatLayout::FlatLayout(std::span<TensorView const> tensors, Bytes small, Bytes most) {
  std::vector<std::size_t> packs;  // few; the other messages may be as many as there are tensors
  for (TensorView const& tensor : tensors) {
    if (tensor.bytes() >= small.value) {
      places.push_back({messages.size(), 0});
      messages.push_back({tensor.dtype, tensor.count(), false});
      continue;
    }
    // Programs see some of these places as gradients, so they are aligned as with DDP.
    auto const next_place = [&](Message const& message) {
      return round_up(message.count, BucketPlan::kAlignment / size_of(tensor.dtype));
    };
    auto const found = std::ranges::find_if(packs, [&](std::size_t index) {
      return messages[index].dtype == tensor.dtype &&
             next_place(messages[index]) * size_of(tensor.dtype) + tensor.bytes() <= most.value;
    });
    std::size_t const pack = found == packs.end() ? messages.size() : *found;
    if (found == packs.end()) {
      packs.push_back(pack);
      messages.push_back({tensor.dtype, 0, true});
    }
    messages[pack].count = next_place(messages[pack]);
    places.push_back({pack, messages[pack].count});
    messages[pack].count += tensor.count();
  }
}

CoalescedTensors::CoalescedTensors(FlatLayout const& layout, std::span<TensorView const> tensors,
                                   Device device)
    : messages_(layout.messages.size()),
      memory_(layout.messages.size()),
      packing_(layout.messages.size()),
      unpacking_(layout.messages.size()) {
  for (std::size_t m = 0; m < messages_.size(); ++m) {
    FlatLayout::Message const& message = layout.messages[m];
    if (!message.packed) continue;
    memory_[m] = zeros(Shape{message.count}, message.dtype, device);
    messages_[m] = memory_[m].view();
  }
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    FlatLayout::Place const& place = layout.places[t];
    TensorView tensor = tensors[t];
    tensor.shape = Shape{tensor.count()};
    if (!layout.messages[place.message].packed) {
      messages_[place.message] = tensor;
    } else if (tensor.count() != 0) {
      TensorView const packed = slice(messages_[place.message], place.offset, tensor.count());
      packing_[place.message].push_back({packed, tensor});
      unpacking_[place.message].push_back({tensor, packed});
    }
  }
}

CoalescedTensors::CoalescedTensors(FlatLayout const& layout, Device device) {
  for (FlatLayout::Message const& message : layout.messages) {
    memory_.push_back(zeros(Shape{message.count}, message.dtype, device));
    messages_.push_back(memory_.back().view());
  }
}

TensorView CoalescedTensors::place(FlatLayout const& layout, std::size_t index, Shape const& shape) const {
  FlatLayout::Place const& place = layout.places[index];
  TensorView view = slice(messages_[place.message], place.offset, shape.count());
  view.shape = shape;
  return view;
}

void CoalescedTensors::pack(std::size_t message, Stream& stream) const {
  if (!packing_.empty() && !packing_[message].empty()) copy_elements(packing_[message], stream);
}

void CoalescedTensors::unpack(std::size_t message, Stream& stream) const {
  if (!unpacking_.empty() && !unpacking_[message].empty()) copy_elements(unpacking_[message], stream);
}

void CoalescedTensors::pack(Stream& stream) const {
  for (std::size_t m = 0; m < messages_.size(); ++m) pack(m, stream);
}

void CoalescedTensors::unpack(Stream& stream) const {
  for (std::size_t m = 0; m < messages_.size(); ++m) unpack(m, stream);
}

void CoalescedTensors::zero(Stream& stream) const {
  for (TensorView const& message : messages_) zero_fill(message, stream);
}

}  // namespace ddp
