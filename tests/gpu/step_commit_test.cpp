// The kernel that commits a step, and what optimizers and the host see of it.
#include <gmock/gmock.h>

#include <limits>

#include "support/errors.hpp"
#include "support/models/device_toy.hpp"
#include "support/models/own_reducer.hpp"
#include "support/ranks/multi_process.hpp"

namespace ddp::testing {
namespace {

using ::testing::HasSubstr;
using Nonfinite = DistributedDataParallelOptions::Nonfinite;

float read(TensorView const& word) {
  float found = -1;
  auto const stream = make_compute_stream(world().device());
  copy_elements(view_of(std::span(&found, 1)), word, *stream);
  stream->synchronize();
  return found;
}

TEST(GpuStepCommit, R26AStepIsCommittedUnlessAnOperationWasEndedEarly) {
  DeviceToy<float> model(world(), {5000, 3});
  auto const commits = std::make_shared<StepCommits>();
  OwnReducer reducer(model, {}, commits);
  for (std::uint64_t step = 1; step <= 3; ++step) {
    reducer.train();
    reducer.wait();
    EXPECT_EQ(reducer->committed_steps(), step);
    EXPECT_EQ(read(reducer->uncommitted()), 0.0F);
  }
  commits->poison();
  reducer.train();
  reducer.wait();
  EXPECT_EQ(reducer->steps(), 4U);
  EXPECT_EQ(reducer->committed_steps(), 3U);
  EXPECT_EQ(read(reducer->uncommitted()), 1.0F);
  world().barrier();  // the failure of a rank that is ahead would end this step too
  EXPECT_THAT(error_of<CommError>([&] { reducer.train(); }).what(), HasSubstr("has changed nothing"))
      << "it would let other ranks commit";
  EXPECT_EQ(reducer->committed_steps(), 3U);
}

TEST(GpuStepCommit, R26TheWordTellsOfNanToo) {
  DeviceToy<float> model(world(), {5000, 3});
  OwnReducer reducer(model, {.nonfinite = Nonfinite::flag}, std::make_shared<StepCommits>());
  EXPECT_EQ(reducer->uncommitted().data, reducer->found_nonfinite().data);
  for (float const number : {1.0F, std::numeric_limits<float>::quiet_NaN(), 2.0F}) {
    model.write_gradient(1, {number, number, number});
    world().stream().synchronize();
    reducer.train();
    reducer.wait();
    EXPECT_EQ(read(reducer->uncommitted()), number == number ? 0.0F : 1.0F);
  }
  EXPECT_EQ(reducer->committed_steps(), 3U) << "all ranks have skipped it";
}

TEST(GpuStepCommit, R26WhereTheHostWaitsTheStepItselfThrows) {
  DeviceToy<float> model(world(), {5000, 3});
  auto const commits = std::make_shared<StepCommits>();
  OwnReducer reducer(model, {.await_commit = true}, commits);
  reducer.train();
  EXPECT_EQ(reducer->committed_steps(), 1U) << "nobody has waited for the stream";
  commits->poison();
  EXPECT_THROW(reducer.train(), CommError);
  EXPECT_EQ(reducer->steps(), 1U);
}

}  // namespace
}  // namespace ddp::testing
