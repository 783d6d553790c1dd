#include "comm/step_commits.hpp"

#include <gmock/gmock.h>

#include <atomic>
#include <future>

#include "support/errors.hpp"

namespace ddp::testing {
namespace {

using ::testing::HasSubstr;

// What the GPU's kernel writes.
void end_step(StepCommits::Steps& steps, bool commits) {
  auto& words = *steps.words();
  std::atomic_ref(words.committed).fetch_add(commits ? 1 : 0);
  std::atomic_ref(words.ended).fetch_add(1);
}

TEST(StepCommits, R26TheHostWaitsForStepsOfEveryModel) {
  StepCommits commits;
  auto const one = commits.make_steps();
  auto const other = commits.make_steps();
  std::atomic<int> checks{0};
  auto const check = [&] { ++checks; };
  commits.wait(check);
  EXPECT_EQ(checks, 0) << "there are no steps";
  one->enqueued();
  other->enqueued();
  end_step(*one, true);
  auto waits = std::async(std::launch::async, [&] { commits.wait(check); });
  EXPECT_EQ(waits.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  EXPECT_GT(checks, 0);
  end_step(*other, true);
  waits.get();
  EXPECT_EQ(other->committed(), 1U);
}

TEST(StepCommits, R26AStepThatIsNotCommittedIsAnErrorOfTheLaterSteps) {
  StepCommits commits;
  auto const steps = commits.make_steps();
  EXPECT_EQ(*commits.poisoned(), 0U);
  steps->enqueued();
  commits.poison();
  EXPECT_NE(*commits.poisoned(), 0U);
  end_step(*steps, false);
  for (int i = 0; i < 2; ++i) {
    CommError const error = error_of<CommError>([&] { commits.wait([] {}); });
    EXPECT_EQ(error.code(), ErrorCode::aborted);
    EXPECT_THAT(error.what(), HasSubstr("the last step has changed nothing"));
  }
  CommError const reason(ErrorCode::peer_lost, "rank 3 was killed");
  EXPECT_THAT(error_of<CommError>([&] { commits.wait([&] { throw CommError(reason); }); }).what(),
              HasSubstr("rank 3 was killed"))
      << "the failure behind it";
}

TEST(StepCommits, R26AFailureEndsTheWaitForAStepThatDoesNotEnd) {
  StepCommits commits;
  auto const steps = commits.make_steps();
  steps->enqueued();
  EXPECT_THROW(commits.wait([] { throw CommError(ErrorCode::peer_lost, "rank 3 was killed"); }), CommError);
}

}  // namespace
}  // namespace ddp::testing
