// Which buffers have changed, and how every rank gets the same values of them again (R10).
#pragma once

#include <cstddef>
#include <mutex>
#include <span>
#include <vector>

#include "ddp/device/tensor_ops.hpp"
#include "ddp/reducer/parameter.hpp"
#include "reducer/lane.hpp"

namespace ddp {

/// The buffers of a model and their marks. Values are sent from memory of this object and received there: a
/// failed message changes no buffer of a CPU. One thread at a time sends; any thread marks.
class MarkedBuffers {
 public:
  /// Collective: allocates on each of `lanes`. `buffers` and `how` are the same on every rank.
  MarkedBuffers(std::vector<NamedTensor> buffers, BufferSync how, std::span<ReducerLane const> lanes);

  [[nodiscard]] std::span<NamedTensor const> buffers() const noexcept { return buffers_; }
  void mark(std::size_t index);
  void mark_all();

  /// Collective if anything is marked: enqueues the messages on the communication streams, which the compute
  /// streams then wait for, and removes the marks. With `records` they stay: the recording may be given up,
  /// and the step then runs. Allocates nothing. `lanes`: those of the constructor, maybe with other compute
  /// streams.
  void send(std::span<ReducerLane const> lanes, bool records = false);

 private:
  // The buffers of one device.
  struct Pack {
    std::vector<DType> message_types;  // of all its buffers, each once; none where this rank is alone
    Tensor memory;                     // room for all of them
    std::vector<TensorView> messages;  // of the last call, as are the copies
    std::vector<Copy> packing;
    std::vector<Copy> unpacking;
  };
  [[nodiscard]] DType message_type(DType dtype) const noexcept;
  void allocate(Pack& pack, ReducerLane const& lane) const;
  void lay_out(Pack& pack, Device device, std::size_t padding) const;
  void enqueue(Pack const& pack, ReducerLane const& lane) const;

  std::vector<NamedTensor> buffers_;
  BufferSync how_;
  std::mutex mutex_;         // of marks_
  std::vector<char> marks_;  // by buffer
  std::vector<Pack> packs_;  // by lane
};

}  // namespace ddp
