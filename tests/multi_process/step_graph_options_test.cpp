// R24: replays with the options of a step together give the bits of steps without a graph.
#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <vector>

#include "ddp/core/text.hpp"
#include "multi_process/step_graph_job.hpp"
#include "support/devices/elements.hpp"

namespace ddp::testing {
namespace {

struct Way {
  GradientStorage storage = GradientStorage::arena;
  bool hook = false;
  bool per_bucket = false;
  bool checked = false;  // clipped, and looked at for NaN
  bool bf16 = false;
  bool deterministic = false;  // R18
};

DistributedDataParallelOptions options_of(Way const& way) {
  DistributedDataParallelOptions options = Job::small_buckets();
  options.storage = way.storage;
  if (way.checked) {
    options.clip_norm = 100;
    options.nonfinite = DistributedDataParallelOptions::Nonfinite::flag;
  }
  if (way.bf16) options.reduce_dtype = DType::bf16;
  options.deterministic = way.deterministic;
  return options;
}

// A job whose updates per bucket are copies of the averages.
struct Trainer {
  explicit Trainer(Way const& way) : job(options_of(way)) {
    if (way.hook) {
      job.ddp.set_comm_hook({"own", [](GradientBucket const& bucket) {
                               for (TensorView const& gradients : bucket.gradients) {
                                 bucket.communicator.all_reduce(gradients, bucket.op, bucket.stream);
                               }
                             }});
    }
    for (std::size_t const count : kCounts) {
      updated.push_back(zeros(Shape{count}, DType::f32, world().device()));
    }
    if (!way.per_bucket) return;
    job.ddp.on_bucket_ready([this](ReducedBucket const& bucket) {
      for (BucketSlice const& piece : bucket.slices) {
        copy_elements(slice(updated[piece.parameter], piece.parameter_offset, piece.count),
                      slice(job.model.gradient_view(piece.parameter), piece.parameter_offset, piece.count),
                      bucket.stream);
      }
    });
  }
  Job job;
  std::vector<Tensor> updated;
};

void expect_same(Trainer& graphed, Trainer& plain, Way const& way) {
  for (std::size_t p = 0; p < kCounts.size(); ++p) {
    auto const expected = read(plain.job.results[p]);
    EXPECT_EQ(read(graphed.job.results[p]), expected) << "parameter " << p;
    if (way.per_bucket) {
      EXPECT_EQ(read(graphed.updated[p]), expected) << "parameter " << p;
    }
  }
  if (!way.checked) return;
  auto const scalar = [](TensorView const& word) {
    std::vector<double> wide(1);
    std::vector<float> narrow(1);
    copy_elements(word.dtype == DType::f64 ? view_of(std::span(wide)) : view_of(std::span(narrow)), word,
                  world().stream());
    world().stream().synchronize();
    return word.dtype == DType::f64 ? wide[0] : static_cast<double>(narrow[0]);
  };
  EXPECT_EQ(scalar(graphed.job.ddp.gradient_norm()), scalar(plain.job.ddp.gradient_norm()));
  EXPECT_EQ(scalar(graphed.job.ddp.found_nonfinite()), scalar(plain.job.ddp.found_nonfinite()));
  EXPECT_EQ(graphed.job.ddp.nonfinite_gradients().size(), plain.job.ddp.nonfinite_gradients().size());
}

TEST(StepGraphOptions, R3R13R14R15R17R18R24TogetherGiveTheBitsOfStepsWithoutAGraph) {
  for (auto const storage : {GradientStorage::arena, GradientStorage::copy, GradientStorage::in_place}) {
    for (unsigned bits = 0; bits < 16; bits += 3) {
      Way const way{storage,         (bits & 1) != 0, (bits & 2) != 0,
                    (bits & 4) != 0, (bits & 8) != 0, (bits & 2) != 0};
      SCOPED_TRACE(text(to_string(storage), ", bits ", bits));
      Trainer graphed(way);
      Trainer plain(way);
      StepGraph graph(graphed.job.ddp, [&] { graphed.job.step(); });
      for (int step = 0; step < kSteps; ++step) {
        for (Trainer* const each : {&graphed, &plain}) {
          each->job.set_inputs(step);
          if (!way.checked || step != 6 || world().rank() != 0) continue;
          std::vector<float> const spoilt(1, std::numeric_limits<float>::quiet_NaN());
          std::vector<float> word = spoilt;
          copy_elements(slice(each->job.inputs[1], 2, 1), view_of(std::span(word)), world().stream());
          world().stream().synchronize();
        }
        graph.run();
        plain.job.step();
        if (way.checked && step == 6) {  // NaN equals nothing
          EXPECT_EQ(graphed.job.ddp.nonfinite_gradients().size(), 1U);
          continue;
        }
        expect_same(graphed, plain, way);
      }
      EXPECT_EQ(graph.is_recorded(), records_steps()) << graph.why_eager();
    }
  }
}

}  // namespace
}  // namespace ddp::testing
