// How long each rank communicated in a step: travels with a later step's tail (R20).
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "ddp/core/tensor.hpp"
#include "ddp/device/event.hpp"
#include "reducer/lane.hpp"

namespace ddp {

/// How many steps a host may be ahead of its device, and these are measured all the same.
inline constexpr std::size_t kMostAhead = 8;

/// A few words from every rank to every rank, on the lane's communication stream. They are read when they are
/// there; the host never waits. What is told while kMostAhead exchanges are unread is lost.
class RankTimes {
 public:
  /// What a rank tells. As doubles, since ranks of a GPU write and gather them on the device.
  struct Words {
    double step = 0;  ///< counted from 1; 0: nothing is told
    double communication_ms = 0;
  };

  explicit RankTimes(ReducerLane const& lane);

  /// What the next exchange tells; on `stream`, which is in front of it.
  void write(Words mine, Stream& stream);
  /// Enqueues the exchange. May be called inside a group, and be recorded into a CUDA graph.
  void exchange();
  /// On `stream`, which is behind it and in front of the next one, and outside of the group.
  void keep(Stream& stream);
  /// The words of every rank in the next exchange that is through. Valid until the next call of keep(). Not
  /// while anything is captured into a CUDA graph.
  [[nodiscard]] std::optional<std::span<Words const>> next();

 private:
  struct Slot {
    explicit Slot(ReducerLane const& lane);
    Tensor words;
    Event there;
  };
  ReducerLane lane_;
  Tensor mine_;
  Tensor all_;
  std::vector<Slot> slots_;
  std::size_t oldest_ = 0;
  std::size_t next_ = 0;
};

namespace cuda {
/// words[0], [1] = values, in memory of a GPU, on `stream`.
void write_pair(TensorView const& words, std::array<double, 2> values, Stream& stream);
}  // namespace cuda

}  // namespace ddp
