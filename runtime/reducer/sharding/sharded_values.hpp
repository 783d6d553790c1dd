// The values of a model whose optimizer is sharded (R25).
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "ddp/reducer/sharding.hpp"
#include "reducer/state.hpp"

namespace ddp {

/// Values lie in arenas of their own, laid out as the gradients', so that those of a bucket lie together.
class ShardedValues {
 public:
  /// Moves the values of `state` to `arenas` (those of its plan, zeroed), where the program finds them from
  /// now on. The host waits for the compute streams. `state` must outlive this object.
  ShardedValues(ReducerState& state, std::vector<Tensor> arenas);

  [[nodiscard]] std::span<Slice const> slices() const noexcept { return slices_; }
  /// Calls `update` for this rank's slices of a bucket.
  void update(std::size_t bucket, SliceReady const& update, Stream& stream) const;

  /// The updates of a bucket are enqueued, and its new values are to be sent.
  void updated(std::size_t bucket) { updated_[of_.buckets.lane(bucket)].push_back(bucket); }
  /// What was updated in a step that is given up is not sent.
  void forget() noexcept {
    for (auto& buckets : updated_) buckets.clear();
  }
  [[nodiscard]] bool has_updated(std::size_t lane) const noexcept { return !updated_[lane].empty(); }
  /// The updated ones are enough for a launch of their own, where nothing else waits for them.
  [[nodiscard]] bool fill_a_gather(std::size_t lane) const;
  /// Enqueues on the lane's communication stream what gives every rank the new values of these buckets. The
  /// stream has been made to wait for the updates.
  void gather(std::size_t lane);

 private:
  void move_values(ReducerState& state) const;
  void cut();
  [[nodiscard]] TensorView values(std::size_t bucket) const;

  ReducerState const& of_;
  std::vector<Tensor> arenas_;
  std::size_t bytes_of_a_gather_;
  std::vector<Slice> slices_;
  std::vector<std::size_t> first_slices_;          // by bucket, and one more
  std::vector<std::vector<std::size_t>> updated_;  // buckets, by lane
};

}  // namespace ddp
