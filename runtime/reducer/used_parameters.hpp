// The tail, which is the last message of a synchronised step: which parameters were used (R12).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ddp/core/tensor.hpp"
#include "ddp/reducer/reducer.hpp"

namespace ddp {

/// Of one lane: a byte a parameter, 0 or 1, behind the buckets on the lane's communication stream, in memory
/// of the lane's device.
class UsedParameters {
 public:
  /// `every_rank`: each rank gets the bytes of every rank, not just what all of them have in common.
  UsedParameters(ReducerLane const& lane, std::size_t parameters, bool every_rank);

  /// Enqueues the exchange of `used`. May be called inside a group.
  void exchange(std::span<std::uint8_t const> used);
  /// The host waits until the last exchange is through; then the following answer for it.
  void fetch();
  /// Of the last exchange, in memory of the lane's device: a byte a parameter, 1 if any rank used it. With
  /// every_rank: what the first rank used.
  [[nodiscard]] TensorView words() const { return slice(all_, 0, parameters_); }
  /// Whether any rank used `parameter`.
  [[nodiscard]] bool by_any(std::size_t parameter) const noexcept;
  /// With every_rank: whether `rank` used `parameter`.
  [[nodiscard]] bool by(std::size_t rank, std::size_t parameter) const noexcept {
    return fetched_[rank * parameters_ + parameter] != 0;
  }

 private:
  ReducerLane lane_;
  std::size_t parameters_;
  bool every_rank_;
  Tensor mine_;
  Tensor all_;  // the maximum over ranks, or every rank's
  bool is_fetched_ = true;
  std::vector<std::uint8_t> fetched_;  // `all_`, on the host
};

namespace cuda {
/// `words`, of a GPU, = `used`, on `stream`. `used` is free when this returns.
void write_used(TensorView const& words, std::span<std::uint8_t const> used, Stream& stream);
}  // namespace cuda

}  // namespace ddp
