// The last kernel of a step, which commits it (R26).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "comm/step_commits.hpp"
#include "ddp/core/tensor.hpp"
#include "reducer/parts/step_part.hpp"

namespace ddp {

/// On a GPU whose rank goes on when another is lost: tells optimizers of a step that broke, and the host how
/// many did not. The host waits for the step before when all gradients of a step are there, which is late
/// enough that the GPU has much left to do.
class StepCommit final : public StepPart {
 public:
  /// `keeps_found`: the lane's `skip` tells of gradients that are not finite, too. `awaited`: the host waits
  /// for each step itself.
  StepCommit(ReducerState const& of, bool keeps_found, bool awaited);

  /// Steps that are committed. The GPU may still be at the others.
  [[nodiscard]] std::uint64_t committed() const noexcept { return steps_->committed(); }
  /// The host waits for all steps of the World. Throws CommError.
  void wait() const;
  /// A recorded step was enqueued.
  void replayed() noexcept { steps_->enqueued(); }

  [[nodiscard]] std::string why_not_recorded() const override;
  [[nodiscard]] bool may_refuse() const override { return awaited_; }
  void before_bucket(std::size_t bucket) override;
  void after_tail() override;
  void verdict() override;

  /// What the kernel reads and writes.
  struct Words {
    std::uint32_t const* poisoned;    ///< pinned
    StepCommits::Steps::Words* own;   ///< in memory of the GPU
    StepCommits::Steps::Words* told;  ///< pinned: a copy for the host
    float* skip;
    bool keeps_found;
  };

 private:
  ReducerLane const& lane_;
  std::shared_ptr<StepCommits::Steps> steps_;
  Tensor own_;
  bool keeps_found_;
  bool awaited_;
};

namespace cuda {
/// Loads the kernel of the next function, so that its first launch waits for nothing.
void load_commit_kernel(Device device);
/// Enqueues the kernel.
void commit_step(StepCommit::Words const& words, Stream& stream);
/// Throws Error(device) if the GPU has failed.
void require_no_failure(Stream& stream);
}  // namespace cuda

}  // namespace ddp
