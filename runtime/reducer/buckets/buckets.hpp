// Which gradients share a bucket, and in which order buckets are sent.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/hash.hpp"
#include "ddp/reducer/bucket_plan.hpp"
#include "ddp/reducer/parameter.hpp"
#include "ddp/reducer/sharding.hpp"
#include "reducer/lane.hpp"
#include "reducer/ranks.hpp"

namespace ddp {

/// The plan in use, and what follows from it. The order is at first the reverse of the parameters', then that
/// in which gradients became complete on rank 0 (R2).
class Buckets {
 public:
  /// `rebuild`: whether the order may change after the first step.
  Buckets(std::span<Parameter const> parameters, std::span<ReducerLane const> lanes, BucketLimits limits,
          bool rebuild, Sharding sharding);

  [[nodiscard]] BucketPlan const& plan() const noexcept { return *plan_; }
  [[nodiscard]] std::size_t count() const noexcept { return plan_->buckets().size(); }
  [[nodiscard]] Bucket const& operator[](std::size_t bucket) const noexcept {
    return plan_->buckets()[bucket];
  }
  /// Index of its lane.
  [[nodiscard]] std::size_t lane(std::size_t bucket) const noexcept { return lanes_of_buckets_[bucket]; }
  [[nodiscard]] std::span<std::size_t const> lanes() const noexcept { return lanes_of_buckets_; }
  /// Index of the lane whose last bucket goes with the step's last message.
  [[nodiscard]] std::size_t tail_lane() const noexcept {
    return lanes_of_buckets_.empty() ? 0 : lanes_of_buckets_.back();
  }
  [[nodiscard]] bool is_sharded() const noexcept { return sharding_ == Sharding::optimizer; }
  /// Elements of a bucket.
  struct Part {
    std::size_t begin = 0;
    std::size_t count = 0;
  };
  /// Of which this rank gets the results: all, or with Sharding::optimizer an n-th.
  [[nodiscard]] Part own_part(std::size_t bucket) const noexcept {
    std::size_t const count = (*this)[bucket].count / parts();
    return {is_sharded() ? place_ * count : 0, count};
  }
  /// What is whose in it.
  [[nodiscard]] std::span<BucketSlice const> own_slices(std::size_t bucket) const noexcept {
    return is_sharded() ? own_slices_[bucket] : (*this)[bucket].slices;
  }
  /// Whose parts are this rank's.
  [[nodiscard]] std::size_t place() const noexcept { return place_; }
  /// Into how many parts a bucket is divided.
  [[nodiscard]] std::size_t parts() const noexcept { return limits_.parts; }
  /// Slices of the bucket that has most.
  [[nodiscard]] std::size_t most_slices() const noexcept;
  /// Whether there are parameters without elements, which are in no bucket.
  [[nodiscard]] bool has_empty_parameters() const noexcept { return has_empty_parameters_; }
  [[nodiscard]] bool may_rebuild() const noexcept { return may_rebuild_; }
  [[nodiscard]] int rebuilds() const noexcept { return rebuilds_; }

  /// The plan for parameters that become ready in this order.
  [[nodiscard]] std::unique_ptr<BucketPlan const> plan_for(std::span<std::size_t const> order) const;
  /// What ranks must have alike.
  [[nodiscard]] std::string describe(BucketPlan const& plan) const;
  /// Uses `plan` from now on.
  void use(std::unique_ptr<BucketPlan const> plan);
  /// Collective. The parameters that every rank has used, in the order of `arrival` on the first rank; behind
  /// them those that some rank has `left_out`, which would hold back what comes after them (R27). Both of one
  /// step.
  [[nodiscard]] std::vector<std::size_t> agreed_order(std::span<std::size_t const> arrival,
                                                      std::span<std::size_t const> left_out,
                                                      ReducerRanks const& ranks) const;

 private:
  [[nodiscard]] std::vector<BucketSlice> cut_own(std::size_t bucket) const;

  std::vector<GradientSpec> specs_;
  std::span<ReducerLane const> lanes_;
  BucketLimits limits_;
  bool may_rebuild_;
  bool has_empty_parameters_;
  std::unique_ptr<BucketPlan const> plan_;
  std::vector<std::size_t> lanes_of_buckets_;
  Sharding sharding_;
  StableHash groups_;                                 // of parameters, if sharded
  std::size_t place_;                                 // of this rank in its group
  std::vector<std::vector<BucketSlice>> own_slices_;  // by bucket, if sharded
  int rebuilds_ = 0;
};

}  // namespace ddp
