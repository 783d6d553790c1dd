// R6, R7, R11, R13 and R15 at once: accumulation, unused parameters, ranks that run out of data, another type
// on the wire, hooks, use of each bucket as soon as it is reduced, and statistics.
#include <gmock/gmock.h>

#include "ddp/core/text.hpp"
#include "multi_process/uneven_steps.hpp"
#include "support/models/device_toy.hpp"
#include "support/ranks/in_process_worlds.hpp"
#include "support/ranks/multi_process.hpp"

namespace ddp::testing {
namespace {

using ::testing::Each;

std::vector<std::size_t> const kCombinedCounts{1500, 40, 700};
constexpr int kMicroSteps = 2;
int combined_steps_of(int rank) { return 2 + 2 * rank; }
bool is_used(int rank, int step, std::size_t parameter) { return parameter != 1 || (rank + step) % 2 == 0; }
// Multiples of 12: sums and averages over up to three ranks are exact in bf16.
float gradient_of(int rank, int step, std::size_t parameter, int micro) {
  return static_cast<float>(12 * (1 + (rank + step + static_cast<int>(parameter) + micro) % 4));
}

float expected_average(int step, std::size_t parameter) {
  float sum = 0;
  int live = 0;
  for (int r = 0; r < world().size(); ++r) {
    if (step >= combined_steps_of(r)) continue;
    ++live;
    for (int micro = 0; is_used(r, step, parameter) && micro < kMicroSteps; ++micro) {
      sum += gradient_of(r, step, parameter, micro);
    }
  }
  return sum / static_cast<float>(live);
}

struct Combination {
  GradientStorage storage = GradientStorage::arena;
  bool bf16 = false;
  bool hook = false;
  bool per_bucket = false;
  bool clips = false;  // to a norm that nothing reaches
  [[nodiscard]] std::string name() const {
    return text(to_string(storage), bf16 ? "_bf16" : "", hook ? "_hook" : "", per_bucket ? "_per_bucket" : "",
                clips ? "_clip" : "");
  }
};

std::vector<Combination> combinations() {
  std::vector<Combination> all;
  for (auto const storage : {GradientStorage::arena, GradientStorage::in_place, GradientStorage::copy}) {
    for (unsigned bits = 0; bits < 16; ++bits) {
      all.push_back({storage, (bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0, (bits & 8) != 0});
    }
  }
  return all;
}

class Combinations : public ::testing::TestWithParam<Combination> {};

TEST_P(Combinations, R6R7R11R13R15GiveWhatOneProcessWouldCompute) {
  Combination const way = GetParam();
  DeviceToy<float> model(world(), kCombinedCounts);
  DistributedDataParallelOptions options{
      .bucket_bytes = 2000_B, .first_bucket_bytes = 500_B, .storage = way.storage};
  options.uneven = DistributedDataParallelOptions::Uneven::divide_by_live;
  options.statistics = way.hook;
  if (way.bf16) options.reduce_dtype = DType::bf16;
  if (way.clips) options.clip_norm = 1e9;
  DistributedDataParallel ddp(world(), model.parameters(), options);
  if (way.hook) {
    ddp.set_comm_hook({"own", [](GradientBucket const& bucket) {
                         for (TensorView const& gradients : bucket.gradients) {
                           bucket.communicator.all_reduce(gradients, bucket.op, bucket.stream);
                         }
                       }});
  }
  DeviceToy<float> seen(world(), kCombinedCounts);  // its gradients are copies of the model's
  if (way.per_bucket) {
    ddp.on_bucket_ready([&](ReducedBucket const& bucket) {
      for (BucketSlice const& piece : bucket.slices) {
        copy_elements(slice(seen.gradient_view(piece.parameter), piece.parameter_offset, piece.count),
                      slice(model.gradient_view(piece.parameter), piece.parameter_offset, piece.count),
                      bucket.stream);
      }
    });
  }
  int step = 0;
  auto const expect_averages = [&] {
    for (std::size_t p = 0; p < kCombinedCounts.size(); ++p) {
      float const expected = expected_average(step, p);
      ASSERT_THAT(model.gradient(p), Each(expected)) << "step " << step << ", parameter " << p;
      if (way.per_bucket) {
        ASSERT_THAT(seen.gradient(p), Each(expected)) << "step " << step << ", parameter " << p;
      }
    }
    ddp.zero_gradients();
  };
  for (; step < combined_steps_of(me()); ++step) {
    std::vector<float> sums(kCombinedCounts.size());
    for (int micro = 0; micro < kMicroSteps; ++micro) {
      auto const guard = ddp.no_sync(micro + 1 < kMicroSteps);
      for (std::size_t p = 0; p < kCombinedCounts.size(); ++p) {  // buckets are rebuilt
        if (!is_used(me(), step, p)) continue;
        sums[p] += gradient_of(me(), step, p, micro);
        model.write_gradient(p, std::vector<float>(kCombinedCounts[p], sums[p]));
        ddp.gradient_ready(p);
      }
      ddp.synchronize();
    }
    expect_averages();
  }
  ddp.join([&] {
    expect_averages();
    ++step;
  });
  EXPECT_EQ(step, combined_steps_of(world().size() - 1));
}

INSTANTIATE_TEST_SUITE_P(Buckets, Combinations, ::testing::ValuesIn(combinations()),
                         [](auto const& parameters) { return parameters.param.name(); });

}  // namespace
}  // namespace ddp::testing
