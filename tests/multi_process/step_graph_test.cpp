// R24: a step that is recorded into a CUDA graph and replayed, where ranks can, and run as it is elsewhere.
#include <gmock/gmock.h>

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "ddp/core/text.hpp"
#include "multi_process/step_graph_job.hpp"
#include "support/errors.hpp"
#include "support/ranks/multi_process.hpp"

namespace ddp::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(StepGraph, R24EveryReplayAveragesWhatTheInputsHold) {
  Job job;
  int calls = 0;
  StepGraph graph(job.ddp, [&] {
    ++calls;
    job.step();
  });
  run_steps(job, graph);
  EXPECT_EQ(graph.is_recorded(), records_steps());
  EXPECT_EQ(calls, records_steps() ? 4 : kSteps) << "three to warm up, and one that was recorded";
  if (records_steps()) {
    EXPECT_THAT(graph.why_eager(), IsEmpty());
  } else if (world().device().kind == DeviceKind::cpu) {
    EXPECT_THAT(graph.why_eager(), HasSubstr("rank 0: a CPU has no CUDA graphs"));
  } else {
    EXPECT_THAT(graph.why_eager(), HasSubstr("cannot be recorded into a CUDA graph"));
  }
  job.step();  // without the graph again
  job.ddp.zero_gradients();
}

// Before the first bucket, between buckets, and behind the last one.
TEST(StepGraph, R24ARankThatCannotRecordMakesAllGoOnWithoutAGraph) {
  for (std::size_t const marks : {std::size_t{0}, std::size_t{1}, kCounts.size()}) {
    Job job;
    int const odd = world().size() - 1;
    job.before_mark = [&](std::size_t marked) {
      bool const fails = marked == marks && world().rank() == odd && world().stream().is_capturing();
      if (fails) throw std::runtime_error("this rank has no graphs");
    };
    StepGraph graph(job.ddp, [&] { job.step(); });
    run_steps(job, graph);
    EXPECT_FALSE(graph.is_recorded());
    auto const reasons = gathered(graph.why_eager());
    EXPECT_THAT(reasons, Each(reasons[0]));
    if (records_steps()) {
      EXPECT_THAT(reasons[0], HasSubstr(text("rank ", odd, ": recording failed: this rank has no graphs")));
    }
  }
}

TEST(StepGraph, R24WhatTheHostLooksAtInEachStepIsARefusalThatNamesIt) {
  for (auto const& [set, reason] :
       std::vector<std::pair<std::function<void(DistributedDataParallelOptions&)>, std::string>>{
           {[](auto& options) { options.unused = DistributedDataParallelOptions::Unused::error; },
            "Options::unused"},
           {[](auto& options) { options.nonfinite = DistributedDataParallelOptions::Nonfinite::error; },
            "nonfinite is error"},
           {[](auto& options) { options.verify_every = 2; }, "verify_every"},
       }) {
    DistributedDataParallelOptions options = Job::small_buckets();
    set(options);
    Job job(options);
    StepGraph graph(job.ddp, [&] { job.step(); });
    run_steps(job, graph);
    EXPECT_FALSE(graph.is_recorded()) << reason;
    if (records_steps()) {
      EXPECT_THAT(graph.why_eager(), AllOf(HasSubstr("rank 0: "), HasSubstr(reason)));
    }
  }
}

TEST(StepGraph, R24AStepThatSynchronizesTwiceOrNotAtAllIsNotRecorded) {
  Job twice;
  StepGraph graph(twice.ddp, [&] {
    twice.step();
    twice.step();
  });
  for (int i = 0; i < 5; ++i) graph.run();
  EXPECT_FALSE(graph.is_recorded());
  if (records_steps()) {
    EXPECT_THAT(graph.why_eager(), HasSubstr("found 2"));
  }

  Job never;
  never.step();  // before the first synchronised step nothing is recorded, and no reason is said
  StepGraph empty(never.ddp, [&] { NoSyncGuard const guard = never.ddp.no_sync(); });
  for (int i = 0; i < 5; ++i) empty.run();
  EXPECT_FALSE(empty.is_recorded());
  if (records_steps()) {
    EXPECT_THAT(empty.why_eager(), HasSubstr("found 0 and no gradients"));
  }
}

TEST(StepGraph, R24BadArgumentsAreRefused) {
  Job job;
  EXPECT_THAT(message_of([&] { StepGraph(job.ddp, {}); }), HasSubstr("expected a function"));
  EXPECT_THAT(message_of([&] { StepGraph(job.ddp, [] {}, {.warm_up = 0}); }), HasSubstr("found 0"));
}

}  // namespace
}  // namespace ddp::testing
