#include "reducer/memory/in_place_messages.hpp"

#include <algorithm>
#include <sstream>
#include <utility>

#include "ddp/core/text.hpp"

namespace ddp {

std::vector<InPlaceMessage> in_place_messages(Bucket const& bucket, std::span<Parameter const> parameters,
                                              bool merge) {
  std::vector<InPlaceMessage> messages;
  for (BucketSlice const& piece : bucket.slices) {
    messages.push_back(
        {slice(parameters[piece.parameter].gradient, piece.parameter_offset, piece.count), {&piece}});
  }
  if (!merge) return messages;
  std::ranges::sort(messages, {}, [](InPlaceMessage const& message) { return message.memory.data; });
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

}  // namespace ddp
