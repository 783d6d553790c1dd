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

/// How many steps a host may be ahead of its device without losing measurements.
inline constexpr std::size_t kMostAhead = 8;

/// A few words from every rank to every rank, on the lane's communication stream. They are read after they
/// have come; the host never waits. Words that are sent while kMostAhead exchanges are unread are lost.
class RankTimes {
 public:
  /// What a rank sends. As doubles, since ranks with a GPU write and gather them on the device.
  struct Words {
    double step = 0;  ///< counted from 1; 0: nothing is told
    double communication_ms = 0;
  };

  explicit RankTimes(ReducerLane const& lane);

  /// Writes what the next exchange sends, on `stream`, which comes before the exchange.
  void write(Words mine, Stream& stream);
  /// Enqueues the exchange. May be called inside a group, and be recorded into a CUDA graph.
  void exchange();
  /// Keeps the result, on `stream`, after the exchange, before the next one, and outside of the group.
  void keep(Stream& stream);
  /// The words of every rank in the next exchange that is done. Valid until the next call of keep(). Not
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
