// What belongs to a step beside its buckets.
#pragma once

#include <cstddef>
#include <string>

#include "reducer/state.hpp"

namespace ddp {

/// Something that a step does beside reducing its buckets. Made if the program asks for it, on all ranks or
/// on none. A step calls begin() and head(); before_bucket() and after_bucket() for each bucket; begin_wait()
/// when the program asks for its end, which may be before the rest of the buckets; tail() with the last
/// bucket, before its after_bucket(); then after_tail(), end() and verdict(). These functions enqueue; only
/// verdict(), and head() where its comment says so, wait on the host.
class StepPart {
 public:
  explicit StepPart(ReducerState const& of) : of_(of) {}
  virtual ~StepPart() = default;
  StepPart(StepPart const&) = delete;
  StepPart& operator=(StepPart const&) = delete;

  /// What ranks must have alike, as "clip_norm 1"; empty: nothing.
  [[nodiscard]] virtual std::string describe() const { return {}; }
  /// Why steps cannot be recorded into a graph (R24); empty if they can.
  [[nodiscard]] virtual std::string why_not_recorded() const { return {}; }
  /// Whether verdict() may refuse the gradients of a step. Then they must not be used before it.
  [[nodiscard]] virtual bool may_refuse() const { return false; }
  /// Before the first step, and when buckets are rebuilt. The streams have reached all that was enqueued.
  virtual void plan_changed() {}

  /// Before anything of the step is enqueued.
  virtual void begin() {}
  /// Before the buckets, on the communication streams. A part that waits on the host comes before
  /// RankWeights; otherwise it would wait for the message of RankWeights too.
  virtual void head() {}
  /// A bucket is complete on this rank, and is filled next.
  virtual void before_bucket(std::size_t /*bucket*/) {}
  /// The bucket holds its results.
  virtual void after_bucket(std::size_t /*bucket*/) {}
  /// The program asks for the step's end: the compute stream waits from here on.
  virtual void begin_wait() {}
  /// With the last bucket, maybe inside a group: enqueues what ranks exchange with the step's last message.
  virtual void tail() {}
  /// Behind the last message.
  virtual void after_tail() {}
  /// The compute streams wait for everything.
  virtual void end() {}
  /// At the end of a step that is not recorded: the host reads what ranks exchanged. Throws on every rank, or
  /// on none.
  virtual void verdict() {}

 protected:
  ReducerState const& of_;
};

}  // namespace ddp
