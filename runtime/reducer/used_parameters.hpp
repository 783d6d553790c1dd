// The tail, which is the last message of a synchronised step: which parameters were used, and what else every
// rank has to know (R12).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ddp/core/tensor.hpp"
#include "ddp/reducer/reducer.hpp"

namespace ddp {

/// The tail of one lane (or, with one byte, which ranks have data): a byte for each parameter, 0 or 1, and
/// behind them flags of the same kind, in memory of the lane's device, sent after the buckets on the lane's
/// communication stream.
class UsedParameters {
 public:
  /// `every_rank`: each rank gets the bytes of every rank, not just their maximum.
  UsedParameters(ReducerLane const& lane, std::size_t parameters, bool every_rank);

  /// `flags` more bytes in each exchange, instead of those before. The streams have reached the last one.
  void carry(std::size_t flags);
  /// Enqueues the exchange of `used` and of flags(). May be called inside a group.
  void exchange(std::span<std::uint8_t const> used);
  /// What this rank's next exchange says.
  [[nodiscard]] std::span<std::uint8_t> flags() noexcept { return std::span(said_).subspan(parameters_); }
  /// An exchange that was recorded before is enqueued again.
  void was_sent() noexcept { is_fetched_ = false; }
  /// The host waits for the last exchange, about which the functions below then answer.
  void fetch();
  /// Of the last exchange, in memory of the lane's device: a byte a parameter, 1 if any rank used it. With
  /// every_rank: what the first rank used.
  [[nodiscard]] TensorView words() const { return slice(all_, 0, parameters_); }
  /// Whether any rank used `parameter`; a flag counts on from there.
  [[nodiscard]] bool by_any(std::size_t parameter) const noexcept;
  /// With every_rank: whether `rank` used `parameter`.
  [[nodiscard]] bool by(std::size_t rank, std::size_t parameter) const noexcept {
    return fetched_[rank * said_.size() + parameter] != 0;
  }

 private:
  ReducerLane lane_;
  std::size_t parameters_;
  bool every_rank_;
  std::vector<std::uint8_t> said_;  // by this rank, before it is written to mine_
  Tensor mine_;
  Tensor all_;  // the maximum over ranks, or every rank's
  bool is_fetched_ = true;
  std::vector<std::uint8_t> fetched_;  // `all_`, on the host
};

namespace cuda {
/// `words`, of a GPU, = `used`, on `stream`. `used` is not needed any more when this returns.
void write_used(TensorView const& words, std::span<std::uint8_t const> used, Stream& stream);
}  // namespace cuda

}  // namespace ddp
