// How the buckets of a sharded optimizer are reduced (R25).
#pragma once

#include <cstddef>
#include <functional>

#include "reducer/buckets/bucket_reduction.hpp"
#include "reducer/buckets/bucket_updates.hpp"
#include "reducer/sharding/sharded_values.hpp"

namespace ddp {

/// Each rank gets the results of its part of a bucket. In the same launch the new values of buckets before it
/// travel, whose updates meanwhile have run.
class ShardedReduction final : public BucketReduction {
 public:
  ShardedReduction(ReducerState const& of, ShardedValues& values, BucketUpdates const& updates)
      : BucketReduction(of), values_(values), updates_(updates) {}

  void reduce(std::size_t first, std::size_t end, ReduceOp op, std::function<void()> const& tail) override;

 private:
  ShardedValues& values_;
  BucketUpdates const& updates_;
};

}  // namespace ddp
