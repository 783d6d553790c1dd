// How complete buckets are reduced over ranks.
#pragma once

#include <cstddef>
#include <functional>
#include <utility>

#include "ddp/reducer/bucket_hooks.hpp"
#include "reducer/state.hpp"

namespace ddp {

/// One way to reduce buckets, the same on every rank. It enqueues on the communication stream of a bucket's
/// lane, after the bucket is filled and before its results are used.
class BucketReduction {
 public:
  explicit BucketReduction(ReducerState const& of) : of_(of) {}
  virtual ~BucketReduction() = default;
  BucketReduction(BucketReduction const&) = delete;
  BucketReduction& operator=(BucketReduction const&) = delete;

  /// The bucket after the last one that is reduced together with `first`; these become complete together.
  [[nodiscard]] virtual std::size_t end_of_run(std::size_t first) const { return first + 1; }
  /// Whether a gradient may be sent from the program's memory, without a copy into its bucket.
  [[nodiscard]] virtual bool may_send_sources() const { return false; }
  /// Enqueues the reduction of buckets first … end - 1 by `op`, and then calls `tail`, if there is one, which
  /// enqueues the step's last messages: in the same launch, where that is possible.
  virtual void reduce(std::size_t first, std::size_t end, ReduceOp op, std::function<void()> const& tail) = 0;

 protected:
  ReducerState const& of_;
};

/// NCCL's or the CPU's all-reduce of each bucket's messages.
class AllReduce final : public BucketReduction {
 public:
  using BucketReduction::BucketReduction;
  [[nodiscard]] std::size_t end_of_run(std::size_t first) const override;
  [[nodiscard]] bool may_send_sources() const override { return true; }
  void reduce(std::size_t first, std::size_t end, ReduceOp op, std::function<void()> const& tail) override;
};

/// The program's own way (R13).
class HookReduction final : public BucketReduction {
 public:
  HookReduction(ReducerState const& of, CommHook hook) : BucketReduction(of), hook_(std::move(hook)) {}

  void reduce(std::size_t first, std::size_t end, ReduceOp op, std::function<void()> const& tail) override;

 private:
  CommHook hook_;
};

}  // namespace ddp
