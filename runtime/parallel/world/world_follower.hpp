// What hangs on a World and is made anew when the World is rebuilt.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ddp/core/tensor.hpp"

namespace ddp {

/// A DistributedDataParallel, as World::rebuild() sees it.
class WorldFollower {
 public:
  virtual ~WorldFollower() = default;

  /// Why it cannot follow; empty if it can. `goes_back`: the program can go back to a checkpoint.
  [[nodiscard]] virtual std::string why_not_rebuilt(bool goes_back) const = 0;
  /// What must be alike on all ranks, in lines.
  [[nodiscard]] virtual std::string form() const = 0;
  /// Steps that are done, on a GPU committed: the rank that has done most gives the values of all followers
  /// to the others.
  [[nodiscard]] virtual std::uint64_t steps() const = 0;
  /// Whether this rank could give others all that they need to go on.
  [[nodiscard]] virtual bool is_whole() const = 0;
  /// Whether the program has counted a step that its GPU has not committed.
  [[nodiscard]] virtual bool is_ahead_of_gpu() const { return false; }
  /// Whether values() may lack the update of the last step.
  [[nodiscard]] virtual bool awaits_update() const { return false; }
  /// What all ranks have alike, in the same order on each.
  [[nodiscard]] virtual std::vector<TensorView> values() const = 0;
  /// values() are those of a rank that has done so many steps.
  virtual void have_done(std::uint64_t steps) = 0;
  /// Makes every rank's operations fail, now and later. Waits for nothing: work of one follower may wait for
  /// another's.
  virtual void abort(std::string_view reason) noexcept = 0;
  /// Then: nothing of it runs any more when this returns.
  virtual void drain(std::string_view reason) noexcept = 0;
  /// Collective over the World's new members: goes on with them. If it throws, what it had stays, aborted.
  virtual void follow() = 0;
};

}  // namespace ddp
