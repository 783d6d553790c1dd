#include "reducer/parts/step_commit.hpp"

#include "reducer/memory/step_words.hpp"

namespace ddp {

StepCommit::StepCommit(ReducerState const& of, bool keeps_found, bool awaited)
    : StepPart(of),
      lane_(of.lanes[0]),
      steps_(lane_.commits->make_steps()),
      own_(step_words(Shape{sizeof(StepCommits::Steps::Words)}, DType::u8, lane_.device)),
      keeps_found_(keeps_found),
      awaited_(awaited) {
  cuda::load_commit_kernel(lane_.device);
}

void StepCommit::wait() const {
  lane_.commits->wait([this] {
    lane_.communicator->check_health();
    cuda::require_no_failure(*lane_.comm_stream);
  });
}

std::string StepCommit::why_not_recorded() const {
  return awaited_ ? "Options::await_commit is set, for which the host waits in each step; leave it out" : "";
}

// What this rank sends from here on lets others commit the step. If it has not committed the step before, its
// gradients are of other weights than theirs.
void StepCommit::before_bucket(std::size_t /*bucket*/) {
  if (!of_.step.is_recorded() && of_.marks.complete() == of_.buckets.count()) wait();
}

void StepCommit::after_tail() {
  cuda::commit_step({lane_.commits->poisoned(), static_cast<StepCommits::Steps::Words*>(own_.view().data),
                     steps_->words(), static_cast<float*>(lane_.skip.view().data), keeps_found_},
                    *lane_.comm_stream);
  if (!of_.step.is_recorded()) steps_->enqueued();
}

void StepCommit::verdict() {
  if (awaited_) wait();
}

}  // namespace ddp
