// Sums between GPUs that NCCL cannot connect: virtual devices of one card (P8, P11).
#pragma once

#include <span>
#include <string>
#include <vector>

#include "ddp/core/tensor.hpp"
#include "ddp/device/stream.hpp"
#include "reducer/memory/coalesced_tensors.hpp"

namespace ddp {

/// Which of these GPUs are one card: "ranks 0, 1 share GPU 0000:06:00.0"; empty if none are, or on CPUs.
[[nodiscard]] std::string cards_in_common(std::span<Device const> devices);

/// Work that is enqueued here waits only for work that was enqueued before it, with events. CUDA may run the
/// streams of a card one after the other, in any order that events allow; it does not know when a stream
/// waits for the host, and the host for another stream of the same process (CUDA Driver API, the warning at
/// cuStreamWaitValue32). One thread at a time.
class DirectExchange {
 public:
  /// For sums on devices[0] of messages of `layout`.
  DirectExchange(std::span<Device const> devices, FlatLayout const& layout);

  /// Adds `others` to `sum`, on `stream`, a stream of devices[0].
  void add(TensorView const& sum, std::span<TensorView const> others, Stream& stream);

 private:
  Tensor arrived_;  // room for one message of another card
};

}  // namespace ddp
