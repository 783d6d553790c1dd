#include "parallel/ddp/buffer_sync.hpp"

#include <algorithm>
#include <string_view>
#include <utility>

#include "core/hash.hpp"
#include "core/round_up.hpp"
#include "ddp/core/text.hpp"

namespace ddp {

// A message is longer than its buffers by a hash of the marks, modulo this. So ranks that marked different
// buffers call operations of different counts, which communicators refuse. Two sets of buffers of equal size
// look alike in one of so many cases. A prime number, so that all bits of the hash count.
constexpr std::size_t kPaddings = 509;

constexpr std::size_t kAlignment = 16;  // of each buffer in its message: the widest loads of a GPU

MarkedBuffers::MarkedBuffers(std::vector<NamedTensor> buffers, BufferSync how,
                             std::span<ReducerLane const> lanes)
    : buffers_(std::move(buffers)), how_(how), marks_(buffers_.size()), packs_(lanes.size()) {
  if (how_ == BufferSync::never) return;
  for (std::size_t l = 0; l < lanes.size(); ++l) allocate(packs_[l], lanes[l]);
}

// Averages are taken of elements; all else are rank 0's bytes, whatever their types.
DType MarkedBuffers::message_type(DType dtype) const noexcept {
  return how_ == BufferSync::average && is_floating(dtype) ? dtype : DType::u8;
}

void MarkedBuffers::allocate(Pack& pack, ReducerLane const& lane) const {
  if (lane.communicator->size() == 1) return;
  std::size_t bytes = 0;
  std::size_t tensors = 0;
  for (NamedTensor const& buffer : buffers_) {
    if (buffer.value.device != lane.device || buffer.value.bytes() == 0) continue;
    bytes += round_up(buffer.value.bytes(), kAlignment);
    ++tensors;
    DType const type = message_type(buffer.value.dtype);
    if (std::ranges::find(pack.message_types, type) == pack.message_types.end()) {
      pack.message_types.push_back(type);
      bytes += round_up(kPaddings * size_of(type), kAlignment);
    }
  }
  if (tensors == 0) return;
  pack.memory = lane.communicator->allocate(Bytes{bytes});
  pack.messages.reserve(pack.message_types.size());
  pack.packing.reserve(tensors);
  pack.unpacking.reserve(tensors);
}

void MarkedBuffers::mark(std::size_t index) {
  require(index < marks_.size(),
          [&] { return text("there is no buffer ", index, ", this object has ", marks_.size()); });
  std::lock_guard const lock(mutex_);
  marks_[index] = 1;
}

void MarkedBuffers::mark_all() {
  std::lock_guard const lock(mutex_);
  std::ranges::fill(marks_, char{1});
}

void MarkedBuffers::send(std::span<ReducerLane const> lanes, bool records) {
  if (how_ == BufferSync::never) return;
  std::lock_guard const lock(mutex_);
  std::size_t const padding =
      StableHash().add(std::string_view(marks_.data(), marks_.size())).value() % kPaddings;
  for (std::size_t l = 0; l < lanes.size(); ++l) {
    lay_out(packs_[l], lanes[l].device, padding);
    if (!packs_[l].messages.empty()) enqueue(packs_[l], lanes[l]);
  }
  for (std::size_t l = 0; l < lanes.size(); ++l) {
    if (!packs_[l].messages.empty()) lanes[l].compute_stream->wait(*lanes[l].comm_stream);
  }
  if (!records) std::ranges::fill(marks_, char{0});
}

void MarkedBuffers::lay_out(Pack& pack, Device device, std::size_t padding) const {
  pack.messages.clear();
  pack.packing.clear();
  pack.unpacking.clear();
  auto* const memory = static_cast<std::byte*>(pack.memory.view().data);
  std::size_t end = 0;
  for (DType const type : pack.message_types) {
    std::size_t const begin = end;
    for (std::size_t b = 0; b < buffers_.size(); ++b) {
      TensorView const& value = buffers_[b].value;
      if (marks_[b] == 0 || value.count() == 0 || value.device != device) continue;
      if (message_type(value.dtype) != type) continue;
      TensorView const place{memory + end, value.shape, value.dtype, device};
      pack.packing.push_back({place, value});
      pack.unpacking.push_back({value, place});
      end += round_up(value.bytes(), kAlignment);
    }
    if (end == begin) continue;
    std::size_t const count = (end - begin) / size_of(type) + padding;
    pack.messages.push_back({memory + begin, Shape{count}, type, device});
    end = begin + round_up(count * size_of(type), kAlignment);
  }
}

void MarkedBuffers::enqueue(Pack const& pack, ReducerLane const& lane) const {
  Stream& stream = *lane.comm_stream;
  bool const average = how_ == BufferSync::average;
  bool const first = lane.communicator->rank() == 0;
  stream.expect_wait();
  stream.wait(*lane.compute_stream);
  if (average || first) copy_elements(pack.packing, stream);
  lane.communicator->group([&] {
    for (TensorView const& message : pack.messages) {
      if (message.dtype == DType::u8) {
        lane.communicator->broadcast(message, Rank{0}, stream);
      } else {
        lane.communicator->all_reduce(message, ReduceOp::average(), stream);
      }
    }
  });
  if (average || !first) copy_elements(pack.unpacking, stream);
}

}  // namespace ddp
