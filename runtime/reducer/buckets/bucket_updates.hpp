// What the program does with each bucket's results, while later buckets travel.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "ddp/reducer/bucket_hooks.hpp"
#include "reducer/state.hpp"

namespace ddp {

/// Runs the program's updates on streams of their own, one a lane. Does nothing until it is given one.
class BucketUpdates {
 public:
  explicit BucketUpdates(ReducerState const& of) : of_(of) {}

  /// Between steps. `from`: what gave it, for messages. An empty `update` ends updates.
  void use(std::string_view from, BucketReady update);
  [[nodiscard]] bool is_used() const noexcept { return update_ != nullptr; }
  /// Runs the update after the work for the bucket on its communication stream.
  void run(std::size_t bucket);
  void run_all();
  /// Makes the compute streams wait for the updates.
  void wait();
  /// Steps, with the last one in which a bucket was updated, or on a GPU in which that was enqueued. Of a
  /// step that broke: when nothing of it runs any more.
  [[nodiscard]] std::uint64_t begun() const noexcept { return begun_; }
  /// Updates of this step are enqueued, as in a replay.
  void mark_begun() noexcept { begun_ = of_.step.number + 1; }
  [[nodiscard]] std::vector<std::unique_ptr<Stream>> const& streams() const noexcept { return streams_; }

 private:
  void call(std::size_t bucket);

  ReducerState const& of_;
  std::string_view from_;
  BucketReady update_;
  std::atomic<std::uint64_t> begun_ = 0;
  std::vector<std::unique_ptr<Stream>> streams_;  // one a lane, once there is an update
};

}  // namespace ddp
