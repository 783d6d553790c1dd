// R24: a step that is recorded into a CUDA graph and replayed, where ranks can, and run as it is elsewhere.
#include "ddp/parallel/step_graph.hpp"

#include <gmock/gmock.h>

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "ddp/core/text.hpp"
#include "support/device_toy.hpp"
#include "support/errors.hpp"
#include "support/multi_process.hpp"

namespace ddp::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<std::size_t> const kCounts{5000, 3, 700};
constexpr int kSteps = 8;

bool records() {
  std::string_view const backend = world().communicator().backend();
  return world().device().kind == DeviceKind::cuda && (backend == "nccl" || backend == "solo");
}

// A model whose gradients are its inputs, and whose optimizer copies averages to where they can be read.
class Job {
 public:
  explicit Job(ReducerOptions const& options = small_buckets()) : ddp(world(), model.parameters(), options) {
    for (std::size_t const count : kCounts) {
      inputs.push_back(zeros(Shape{count}, DType::f32, world().device()));
      results.push_back(zeros(Shape{count}, DType::f32, world().device()));
    }
  }
  static ReducerOptions small_buckets() { return {.bucket_bytes = 2000_B, .first_bucket_bytes = 500_B}; }

  void set_inputs(int step) {
    for (std::size_t p = 0; p < kCounts.size(); ++p) {
      std::vector<float> numbers(kCounts[p], number(world().rank().value(), step, p));
      copy_elements(inputs[p], view_of(std::span(numbers)), world().stream());
      world().stream().synchronize();
    }
  }
  void step() {
    for (std::size_t p = kCounts.size(); p-- > 0;) {
      if (before_mark) before_mark(kCounts.size() - 1 - p);
      copy_elements(model.gradient_view(p), inputs[p], world().stream());
      ddp.gradient_ready(p);
    }
    ddp.synchronize();
    if (before_mark) before_mark(kCounts.size());
    for (std::size_t p = 0; p < kCounts.size(); ++p) {
      copy_elements(results[p], model.gradient_view(p), world().stream());
    }
  }
  void expect_results(int step) {
    for (std::size_t p = 0; p < kCounts.size(); ++p) {
      float sum = 0;
      for (int r = 0; r < world().size(); ++r) sum += number(r, step, p);
      float const expected = sum / static_cast<float>(world().size());
      std::vector<float> found(kCounts[p]);
      copy_elements(view_of(std::span(found)), results[p], world().stream());
      world().stream().synchronize();
      EXPECT_THAT(found, Each(::testing::FloatNear(expected, expected * 1e-6F)))
          << "step " << step << ", parameter " << p;
    }
  }

  DeviceToy<float> model{world(), kCounts};
  DistributedDataParallel ddp;
  std::vector<Tensor> inputs;
  std::vector<Tensor> results;
  std::function<void(std::size_t marked)> before_mark;

 private:
  static float number(int rank, int step, std::size_t parameter) {
    return static_cast<float>(12 * (rank + 1) * (step + 1) + 60 * static_cast<int>(parameter));
  }
};

void run_steps(Job& job, StepGraph& graph, int first = 0) {
  for (int step = first; step < first + kSteps; ++step) {
    job.set_inputs(step);
    graph.run();
    job.expect_results(step);
    EXPECT_EQ(job.ddp.reducer().steps(), static_cast<std::uint64_t>(step + 1));
  }
}

TEST(StepGraph, R24EveryReplayAveragesWhatTheInputsHold) {
  Job job;
  int calls = 0;
  StepGraph graph(job.ddp, [&] {
    ++calls;
    job.step();
  });
  run_steps(job, graph);
  EXPECT_EQ(graph.is_recorded(), records());
  EXPECT_EQ(calls, records() ? 4 : kSteps) << "three to warm up, and one that was recorded";
  if (records()) {
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
    if (records()) {
      EXPECT_THAT(reasons[0], HasSubstr(text("rank ", odd, ": recording failed: this rank has no graphs")));
    }
  }
}

TEST(StepGraph, R24WhatTheHostLooksAtInEachStepIsARefusalThatNamesIt) {
  for (auto const& [set, reason] : std::vector<std::pair<std::function<void(ReducerOptions&)>, std::string>>{
           {[](auto& options) { options.unused = ReducerOptions::Unused::error; }, "ReducerOptions::unused"},
           {[](auto& options) { options.nonfinite = ReducerOptions::Nonfinite::error; },
            "nonfinite is error"},
           {[](auto& options) { options.verify_every = 2; }, "verify_every"},
           {[](auto& options) { options.statistics = true; }, "statistics"},
       }) {
    ReducerOptions options = Job::small_buckets();
    set(options);
    Job job(options);
    StepGraph graph(job.ddp, [&] { job.step(); });
    run_steps(job, graph);
    EXPECT_FALSE(graph.is_recorded()) << reason;
    if (records()) {
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
  if (records()) {
    EXPECT_THAT(graph.why_eager(), HasSubstr("found 2"));
  }

  Job never;
  StepGraph empty(never.ddp, [&] { NoSyncGuard const guard = never.ddp.no_sync(); });
  for (int i = 0; i < 5; ++i) empty.run();
  EXPECT_FALSE(empty.is_recorded());
  if (records()) {
    EXPECT_THAT(empty.why_eager(), HasSubstr("found 0"));
  }
}

TEST(StepGraph, R24BadArgumentsAreRefused) {
  Job job;
  EXPECT_THAT(message_of([&] { StepGraph(job.ddp, {}); }), HasSubstr("expected a function"));
  EXPECT_THAT(message_of([&] { StepGraph(job.ddp, [] {}, {.warm_up = 0}); }), HasSubstr("found 0"));
}

}  // namespace
}  // namespace ddp::testing
