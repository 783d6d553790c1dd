#include "parallel/ddp/value_broadcast.hpp"

#include <vector>

#include "reducer/memory/coalesced_tensors.hpp"

namespace ddp {
namespace {

// How much memory, beside the model, the values of small tensors may take while they are sent.
constexpr Bytes kMostPacked = 25_MiB;

// How many of `tensors` can be sent at once.
std::size_t sent_together(std::span<TensorView const> tensors) {
  std::size_t packed = 0;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    if (tensors[t].bytes() < FlatLayout::kSmall.value) packed += tensors[t].bytes();
    if (packed > kMostPacked.value) return t;
  }
  return tensors.size();
}

void broadcast_together(ReducerLane const& lane, std::span<TensorView const> tensors) {
  CoalescedTensors const values(FlatLayout(tensors), tensors, lane.device);
  bool const sends = lane.communicator->rank() == 0;
  lane.comm_stream->wait(*lane.compute_stream);
  if (sends) values.pack(*lane.comm_stream);
  for (TensorView const& message : values.messages()) {
    if (message.count() != 0) lane.communicator->broadcast(message, Rank{0}, *lane.comm_stream);
  }
  if (!sends) values.unpack(*lane.comm_stream);
  lane.comm_stream->synchronize();
  lane.compute_stream->wait(*lane.comm_stream);
}

// As bytes, so that tensors of all dtypes can share a message.
template <class Tensors>
void collect_values(Tensors const& tensors, Device device, std::vector<TensorView>& values) {
  for (auto const& tensor : tensors) {
    TensorView const& value = tensor.value;
    if (value.device == device) values.push_back({value.data, Shape{value.bytes()}, DType::u8, device});
  }
}

}  // namespace

void broadcast_values(ReducerLane const& lane, std::span<Parameter const> parameters,
                      std::span<NamedTensor const> buffers) {
  std::vector<TensorView> values;
  collect_values(parameters, lane.device, values);
  collect_values(buffers, lane.device, values);
  for (std::span<TensorView const> rest = values; !rest.empty();) {
    std::size_t const next = sent_together(rest);
    broadcast_together(lane, rest.first(next));
    rest = rest.subspan(next);
  }
}

}  // namespace ddp
