// The ranks that reduce together, and what they exchange outside of steps.
#pragma once

#include <chrono>
#include <cstddef>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ddp/bootstrap/control_plane.hpp"
#include "ddp/core/ids.hpp"

namespace ddp {

/// Of one Reducer. Functions that exchange values are collective, and throw CommError at the deadline.
class ReducerRanks {
 public:
  /// `name` is equal on every rank, and used by only one living Reducer.
  ReducerRanks(std::string name, std::shared_ptr<ControlPlane> control, std::vector<Rank> ranks,
               std::chrono::milliseconds timeout)
      : name_(std::move(name)), control_(std::move(control)), ranks_(std::move(ranks)), timeout_(timeout) {}

  [[nodiscard]] std::string const& name() const noexcept { return name_; }
  [[nodiscard]] std::size_t size() const noexcept { return ranks_.size(); }
  /// By place in the group.
  [[nodiscard]] Rank operator[](std::size_t place) const noexcept { return ranks_[place]; }
  [[nodiscard]] Rank self() const { return control_->rank(); }

  /// The value of each rank, by place.
  [[nodiscard]] std::vector<std::string> exchange(std::string_view what, std::string_view value) const;
  /// Throws CommError(mismatch) on every rank if they do not all reduce gradients with the same `value`.
  void require_same(std::string_view what, std::string_view value, std::string_view advice) const;
  /// Call it when every rank is about to throw the same error: waits until the others have read the verdict,
  /// since the first rank that throws may end the group, or its process.
  void let_others_read() const noexcept;
  /// Tells ddp-launch and the other ranks.
  void report_failure(std::exception const& error) const { control_->report_failure(error); }

 private:
  std::string name_;
  std::shared_ptr<ControlPlane> control_;
  std::vector<Rank> ranks_;
  std::chrono::milliseconds timeout_;
};

/// "rank 3", "ranks 0, 3".
[[nodiscard]] std::string name_ranks(std::span<Rank const> ranks);

}  // namespace ddp
