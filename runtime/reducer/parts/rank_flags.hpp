// Flags that ranks exchange in a step: which parameters were used, which ranks have data (R12).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ddp/core/tensor.hpp"
#include "reducer/lane.hpp"

namespace ddp {

/// A byte of 0 or 1 for each of `items`, and behind them more flags of the same kind, in memory of the lane's
/// device, exchanged on the lane's communication stream.
class RankFlags {
 public:
  /// `every_rank`: each rank gets the bytes of every rank, not just their maximum.
  RankFlags(ReducerLane const& lane, std::size_t items, bool every_rank);

  /// From now on each exchange has `flags` further bytes. The streams must have reached the last exchange.
  void carry(std::size_t flags);
  /// Enqueues the exchange of `items` and of flags(). May be called inside a group.
  void exchange(std::span<std::uint8_t const> items);
  /// This rank's further bytes of the next exchange.
  [[nodiscard]] std::span<std::uint8_t> flags() noexcept { return std::span(said_).subspan(items_); }
  /// An exchange that was recorded before is enqueued again.
  void was_sent() noexcept { is_fetched_ = false; }
  /// The host waits for the last exchange; the functions below are about it.
  void fetch();
  /// The bytes of the last exchange, in memory of the lane's device: 1 for an item if any rank's is 1. With
  /// every_rank: those of the first rank.
  [[nodiscard]] TensorView words() const { return slice(all_, 0, items_); }
  /// Whether any rank's byte of `item` is 1; flags are numbered after the items.
  [[nodiscard]] bool by_any(std::size_t item) const noexcept;
  /// With every_rank: whether the byte of `rank` for `item` is 1.
  [[nodiscard]] bool by(std::size_t rank, std::size_t item) const noexcept {
    return fetched_[rank * said_.size() + item] != 0;
  }

 private:
  ReducerLane lane_;
  std::size_t items_;
  bool every_rank_;
  std::vector<std::uint8_t> said_;  // by this rank, before it is written to mine_
  Tensor mine_;
  Tensor all_;  // the maximum over ranks, or every rank's
  bool is_fetched_ = true;
  std::vector<std::uint8_t> fetched_;  // `all_`, on the host
};

namespace cuda {
/// `words`, of a GPU, = `flags`, on `stream`. `flags` may be freed when this returns.
void write_flags(TensorView const& words, std::span<std::uint8_t const> flags, Stream& stream);
}  // namespace cuda

}  // namespace ddp
