// A step for StepGraph whose results are known.
#pragma once

#include <gmock/gmock.h>

#include <functional>
#include <vector>

#include "ddp/parallel/step_graph.hpp"
#include "support/models/device_toy.hpp"
#include "support/ranks/multi_process.hpp"

namespace ddp::testing {

inline std::vector<std::size_t> const kCounts{5000, 3, 700};
inline constexpr int kSteps = 8;

/// A model whose gradients are its inputs, and whose optimizer copies averages to where they can be read.
class Job {
 public:
  explicit Job(DistributedDataParallelOptions const& options = small_buckets())
      : ddp(world(), model.parameters(), options) {
    for (std::size_t const count : kCounts) {
      inputs.push_back(zeros(Shape{count}, DType::f32, world().device()));
      results.push_back(zeros(Shape{count}, DType::f32, world().device()));
    }
  }
  static DistributedDataParallelOptions small_buckets() {
    return {.bucket_bytes = 2000_B, .first_bucket_bytes = 500_B};
  }

  void set_inputs(int step) {
    for (std::size_t p = 0; p < kCounts.size(); ++p) {
      std::vector<float> numbers(kCounts[p], number(world().rank().value(), step, p));
      copy_elements(inputs[p], view_of(std::span(numbers)), world().stream());
      world().stream().synchronize();
    }
  }
  void write_gradients() {
    for (std::size_t p = 0; p < kCounts.size(); ++p) {
      copy_elements(model.gradient_view(p), inputs[p], world().stream());
    }
  }
  void read_gradients() {
    for (std::size_t p = 0; p < kCounts.size(); ++p) {
      copy_elements(results[p], model.gradient_view(p), world().stream());
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
    read_gradients();
  }
  void expect_results(int step) {
    std::vector<double> const equal(static_cast<std::size_t>(world().size()), 1);
    expect_results(step, equal);
  }
  void expect_results(int step, std::vector<double> const& weights) {
    for (std::size_t p = 0; p < kCounts.size(); ++p) {
      double sum = 0;
      double all = 0;
      for (int r = 0; r < world().size(); ++r) {
        double const weight = weights[static_cast<std::size_t>(r)];
        sum += weight * number(r, step, p);
        all += weight;
      }
      auto const expected = static_cast<float>(sum / all);
      std::vector<float> found(kCounts[p]);
      copy_elements(view_of(std::span(found)), results[p], world().stream());
      world().stream().synchronize();
      EXPECT_THAT(found, ::testing::Each(::testing::FloatNear(expected, expected * 1e-6F)))
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

inline void run_steps(Job& job, StepGraph& graph, int first = 0) {
  for (int step = first; step < first + kSteps; ++step) {
    job.set_inputs(step);
    graph.run();
    job.expect_results(step);
    EXPECT_EQ(job.ddp.steps(), static_cast<std::uint64_t>(step + 1));
  }
}

}  // namespace ddp::testing
