// R24: steps that differ from replay to replay: weights, micro-steps, buffers, other memory.
#include <gmock/gmock.h>

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include "ddp/core/text.hpp"
#include "multi_process/step_graph_job.hpp"
#include "parallel/ddp/reducer_access.hpp"
#include "support/errors.hpp"

namespace ddp::testing {
namespace {

using ::testing::Each;
using ::testing::Eq;
using ::testing::HasSubstr;

// Rank 1 has no samples in some steps.
std::vector<double> weights_of(int step) {
  std::vector<double> weights;
  for (int r = 0; r < world().size(); ++r)
    weights.push_back(r == 1 && step % 3 == 2 ? 0 : 3.0 * r + step + 1);
  return weights;
}

TEST(StepGraphVariants, R12R24WeightsDifferFromReplayToReplay) {
  Job job;
  StepGraph graph(job.ddp, [&] { job.step(); });
  for (int step = 0; step < 2 * kSteps; ++step) {
    auto const weights = weights_of(step);
    job.set_inputs(step);
    job.ddp.set_weight(weights[world().rank().index()]);
    graph.run();
    job.expect_results(step, weights);
  }
  EXPECT_EQ(graph.is_recorded(), records_steps()) << graph.why_eager();
  job.set_inputs(0);
  if (records_steps()) {
    EXPECT_THAT(message_of([&] { graph.run(); }), HasSubstr("a replay without set_weight()"));
    graph.record_again();
  }
  run_steps(job, graph, 2 * kSteps);  // without weights
  EXPECT_EQ(graph.is_recorded(), records_steps()) << graph.why_eager();
  if (!records_steps()) return;
  job.ddp.set_weight(1);
  EXPECT_THAT(message_of([&] { graph.run(); }), HasSubstr("recorded without"));
}

TEST(StepGraphVariants, R12R24WeightsInsideOfARecordedStepAreRefused) {
  Job job;
  StepGraph graph(job.ddp, [&] {
    job.ddp.set_weight(2);
    job.step();
  });
  run_steps(job, graph);
  EXPECT_FALSE(graph.is_recorded());
  if (records_steps()) {
    EXPECT_THAT(graph.why_eager(), HasSubstr("call it before StepGraph::run()"));
  }
}

// Micro-steps write all gradients; the step that sends marks the first parameter's only.
TEST(StepGraphVariants, R7R24MicroStepsAreRecordedToo) {
  Job job;
  StepGraph micro(job.ddp, [&] {
    auto const guard = job.ddp.no_sync();
    job.write_gradients();
    for (std::size_t p = 0; p < kCounts.size(); ++p) job.ddp.gradient_ready(p);
  });
  StepGraph send(job.ddp, [&] {
    job.ddp.gradient_ready(0);
    job.ddp.synchronize();
    job.read_gradients();
  });
  for (int m = 0; m < 5; ++m) {  // more than warm-up, before buckets get their order
    job.set_inputs(m);
    micro.run();
    EXPECT_FALSE(micro.is_recorded());
  }
  for (int step = 0; step < kSteps; ++step) {
    for (int m = 0; m <= step % 3; ++m) {
      job.set_inputs(step + m - step % 3);
      micro.run();
    }
    send.run();
    job.expect_results(step);
    EXPECT_EQ(job.ddp.steps(), static_cast<std::uint64_t>(step + 1));
  }
  EXPECT_EQ(micro.is_recorded(), records_steps()) << micro.why_eager();
  EXPECT_EQ(send.is_recorded(), records_steps()) << send.why_eager();
  // What a replayed micro-step marked is sent by a step without a graph.
  job.set_inputs(20);
  micro.run();
  job.ddp.synchronize();
  job.read_gradients();
  job.expect_results(20);
  if (!records_steps()) return;
  EXPECT_THAT(message_of([&] { send.run(); }),
              HasSubstr("was not marked ready under no_sync() before a replay"));
}

TEST(StepGraphVariants, R7R24MicroStepsWithinARecordedStep) {
  Job job;
  StepGraph graph(job.ddp, [&] {
    {
      auto const guard = job.ddp.no_sync();
      job.write_gradients();
      for (std::size_t p = 0; p < kCounts.size(); ++p) job.ddp.gradient_ready(p);
    }
    job.ddp.gradient_ready(2);
    job.ddp.synchronize();
    job.read_gradients();
  });
  run_steps(job, graph);
  EXPECT_EQ(graph.is_recorded(), records_steps()) << graph.why_eager();
}

// One rank's recording fails before it marks its buffer, and between micro-steps and the step that sends.
TEST(StepGraphVariants, R7R10R24AFailedRecordingLeavesMarksAndMicroStepsAsTheyWere) {
  DeviceToy<float> model(world(), kCounts);
  Tensor const buffer = zeros(Shape{100}, DType::f32, world().device());
  auto options = Job::small_buckets();
  options.buffers = {{"running_mean", buffer.view(), {}}};
  DistributedDataParallel ddp(world(), model.parameters(), options);
  StepGraph graph(ddp, [&] {
    ddp.sync_buffers();
    if (world().rank() == world().size() - 1 && world().stream().is_capturing()) {
      throw std::runtime_error("this rank has no graphs");
    }
    ddp.mark_buffer_dirty(0);
    ddp.gradient_ready(1);
    ddp.synchronize();
  });
  for (int step = 0; step < kSteps; ++step) {
    model.fill_gradients(world().rank().value());
    {
      auto const guard = ddp.no_sync();
      for (std::size_t p = 0; p < kCounts.size(); ++p) ddp.gradient_ready(p);
    }
    graph.run();
    for (std::size_t p = 0; p < kCounts.size(); ++p) {
      EXPECT_NEAR(model.gradient(p)[1], ToyModel::average_gradient(p, 1, world().size()), 1e-3)
          << "step " << step << ", parameter " << p;
    }
  }
  EXPECT_FALSE(graph.is_recorded());
}

TEST(StepGraphVariants, R24RecordAgainUsesOtherMemory) {
  Job job;
  StepGraph graph(job.ddp, [&] { job.step(); });
  run_steps(job, graph);
  for (std::size_t p = 0; p < kCounts.size(); ++p) {
    job.inputs[p] = zeros(Shape{kCounts[p]}, DType::f32, world().device());
  }
  graph.record_again();
  EXPECT_FALSE(graph.is_recorded());
  run_steps(job, graph, kSteps);
  EXPECT_EQ(graph.is_recorded(), records_steps()) << graph.why_eager();
}

TEST(StepGraphVariants, R20R24ReplaysAreMeasured) {
  for (bool const begins_forward : {false, true}) {
    DistributedDataParallelOptions options = Job::small_buckets();
    options.statistics = true;
    std::vector<StepStatistics> seen;  // goes after the job, which reports at its end too
    Job job(options);
    StepGraph graph(job.ddp, [&] {
      if (begins_forward) job.ddp.begin_forward();
      job.step();
    });
    reducer_of(job.ddp).report_statistics(
        [&](std::vector<StepStatistics> steps) { std::ranges::move(steps, std::back_inserter(seen)); });
    for (int step = 0; step < 40; ++step) {
      job.set_inputs(step);
      graph.run();
      job.expect_results(step);
    }
    EXPECT_EQ(graph.is_recorded(), records_steps()) << graph.why_eager();
    ASSERT_GT(seen.size(), 20U);
    for (std::size_t s = 1; s < seen.size(); ++s) {
      StepStatistics const& one = seen[s];
      EXPECT_EQ(one.step, seen[s - 1].step + 1);
      EXPECT_EQ(one.buckets, job.ddp.plan().buckets().size());
      EXPECT_EQ(one.order.size(), kCounts.size());
      EXPECT_EQ(one.bytes, seen[1].bytes);
      EXPECT_GE(one.communication_ms, 0);
      EXPECT_LT(one.communication_ms, 10e3);
      EXPECT_EQ(one.late_ms.size(), static_cast<std::size_t>(world().size()));
      ASSERT_TRUE(one.forward_ms);
      if (begins_forward || !one.step_ms) continue;
      EXPECT_NEAR(*one.forward_ms + one.backward_ms + one.exposed_ms, *one.step_ms,
                  0.01 * *one.step_ms + 1e-3);
    }
  }
}

TEST(StepGraphVariants, R10R24BuffersOfRankZeroTravelInEveryReplay) {
  DeviceToy<float> model(world(), kCounts);
  Tensor const buffer = zeros(Shape{100}, DType::f32, world().device());
  Tensor const input = zeros(Shape{100}, DType::f32, world().device());
  auto options = Job::small_buckets();
  options.buffers = {{"running_mean", buffer.view(), {}}};
  DistributedDataParallel ddp(world(), model.parameters(), options);
  StepGraph graph(ddp, [&] {
    copy_elements(buffer, input, world().stream());
    ddp.mark_buffer_dirty(0);
    ddp.sync_buffers();
    for (std::size_t p = kCounts.size(); p-- > 0;) ddp.gradient_ready(p);
    ddp.synchronize();
  });
  for (int step = 0; step < kSteps; ++step) {
    std::vector<float> numbers(100, static_cast<float>(10 * step + world().rank().value()));
    copy_elements(input, view_of(std::span(numbers)), world().stream());
    world().stream().synchronize();
    graph.run();
    copy_elements(view_of(std::span(numbers)), buffer, world().stream());
    world().stream().synchronize();
    EXPECT_THAT(numbers, Each(Eq(static_cast<float>(10 * step)))) << "step " << step;
  }
  EXPECT_EQ(graph.is_recorded(), records_steps()) << graph.why_eager();
}

}  // namespace
}  // namespace ddp::testing
