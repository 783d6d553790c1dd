// The rows R of the reducer on GPU memory, with ranks that are processes; beside the oracle, which trains.
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <thread>

#include "comm/communicator_backend.hpp"
#include "ddp/core/text.hpp"
#include "ddp/ddp.hpp"
#include "ddp/device/cuda_stream.hpp"
#include "ddp/device/device_guard.hpp"
#include "ddp/device/event.hpp"
#include "ddp/device/memory.hpp"
#include "parallel/ddp/reducer_access.hpp"
#include "support/errors.hpp"
#include "support/models/device_toy.hpp"
#include "support/models/own_reducer.hpp"
#include "support/ranks/in_process_worlds.hpp"
#include "support/ranks/multi_process.hpp"

namespace ddp::testing {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

int ranks() { return world().size(); }
int me() { return world().rank().value(); }

DistributedDataParallel make(DeviceToy<float>& model, DistributedDataParallelOptions const& options = {}) {
  return {world(), model.parameters(), options};
}

DistributedDataParallelOptions small_buckets(GradientStorage storage = GradientStorage::arena) {
  DistributedDataParallelOptions options;
  options.storage = storage;
  options.bucket_bytes = options.first_bucket_bytes = 4096_B;
  return options;
}

template <class T>
void expect_averages(DeviceToy<T> const& model, std::size_t p) {
  auto const found = model.gradient(p);
  for (std::size_t i = 0; i < found.size(); ++i) {
    // Averages of integers below 2^8 · ranks: exact but for the rounding of 1/n.
    float const expected = ToyModel::average_gradient(p, i, ranks());
    ASSERT_NEAR(static_cast<float>(found[i]), expected, std::abs(expected) * (sizeof(T) == 2 ? 1e-2F : 1e-6F))
        << "parameter " << p << ", element " << i;
  }
}

// Beside parameters and gradients, as the pool counts what is in use. First of all tests: the peak is the
// process's.
TEST(GpuReducer, R3DeviceMemoryIsOneCopyOfTheGradientsAndLittleMore) {
  constexpr std::size_t kCount = std::size_t{16} << 20;
  DeviceToy<float> model(world(), std::vector<std::size_t>(4, kCount));
  std::size_t const before = memory_stats(world().device()).in_use.value;
  auto ddp = make(model);
  for (int step = 0; step < 3; ++step) {
    for (std::size_t p = 0; p < 4; ++p) ddp.gradient_ready(p);
    ddp.synchronize();
  }
  world().stream().synchronize();
  std::size_t const extra = memory_stats(world().device()).in_use.value - before - 4 * kCount * sizeof(float);
  EXPECT_LE(extra, (2_MiB).value);
  std::size_t const peak = memory_stats(world().device()).peak.value - before - 4 * kCount * sizeof(float);
  EXPECT_LE(peak, (2_MiB).value) << "at construction or at the rebuild";
}

class Storages : public ::testing::TestWithParam<GradientStorage> {};

TEST_P(Storages, R1R2R3GradientsBecomeAveragesInEveryStepAndOrder) {
  DeviceToy<float> model(world(), {5000, 3, 70'000, 1024});
  auto ddp = make(model, small_buckets(GetParam()));
  EXPECT_EQ(model.value(2)[7], ToyModel::initial(0, 7)) << "rank 0's values (R9)";
  for (int step = 0; step < 4; ++step) {
    for (std::size_t p = 0; p < 4; ++p) {  // registration order: the buckets are rebuilt after the first step
      model.fill_gradient(p, me());
      ddp.gradient_ready(p);
    }
    ddp.synchronize();
    for (std::size_t p = 0; p < 4; ++p) expect_averages(model, p);
  }
  EXPECT_EQ(reducer_of(ddp).rebuilds(), 1);
}

TEST_P(Storages, R7UnmarkedParametersCountAsZeroAndAreKnown) {
  DeviceToy<float> model(world(), {500, 600, 700});
  auto ddp = make(model, small_buckets(GetParam()));
  EXPECT_FALSE(ddp.has_gradient(0)) << "before the first step";
  for (int step = 0; step < 3; ++step) {
    model.fill_gradients(me());  // stale values of unmarked parameters must not be sent
    ddp.gradient_ready(2);
    if (me() == 0) ddp.gradient_ready(1);
    ddp.synchronize();
    expect_averages(model, 2);
    EXPECT_NEAR(model.gradient(1)[3], ToyModel::gradient(1, 3, 0) / static_cast<float>(ranks()), 1e-4);
    EXPECT_EQ(model.gradient(0)[3], 0.0F);
    EXPECT_TRUE(ddp.has_gradient(2));
    EXPECT_TRUE(ddp.has_gradient(1));
    EXPECT_FALSE(ddp.has_gradient(0));
  }
}

INSTANTIATE_TEST_SUITE_P(All, Storages,
                         ::testing::Values(GradientStorage::arena, GradientStorage::in_place,
                                           GradientStorage::copy),
                         [](auto const& parameters) { return std::string(to_string(parameters.param)); });

TEST(GpuReducer, R4WeightsGiveTheExactWeightedMeanAndWeight0HidesNaN) {
  DeviceToy<float> model(world(), {4000, 17});
  auto ddp = make(model, small_buckets());
  for (int step = 0; step < 3; ++step) {
    // The last rank has no samples; its gradients are NaN.
    bool const empty = ranks() > 1 && me() == ranks() - 1;
    double const weight = empty ? 0.0 : 1.0 + me() + step;
    ddp.set_weight(weight);
    for (std::size_t p = 2; p-- > 0;) {
      if (empty) {
        std::vector<float> const nothing(model.gradient_view(p).count(),
                                         std::numeric_limits<float>::quiet_NaN());
        model.write_gradient(p, nothing);
      } else {
        model.fill_gradient(p, me());
      }
      ddp.gradient_ready(p);
    }
    ddp.synchronize();
    double sum = 0;
    double weights = 0;
    for (int r = 0; r < std::max(1, ranks() - 1); ++r) {
      sum += (1.0 + r + step) * ToyModel::gradient(0, 5, r);
      weights += 1.0 + r + step;
    }
    EXPECT_NEAR(model.gradient(0)[5], sum / weights, 1e-5 * sum / weights) << "step " << step;
  }
}

TEST(GpuReducer, R4TheWeightsOfAStepStayWhenTheHostIsStepsAhead) {
  DeviceToy<float> model(world(), {1 << 20});
  auto ddp = make(model);
  std::vector<Tensor> results;
  constexpr int kSteps = 20;
  for (int step = 0; step < kSteps; ++step) {
    ddp.set_weight(me() == step % ranks() ? 2.0 : 0.0);  // only one rank's gradients count
    model.fill_gradient(0, me());
    ddp.gradient_ready(0);
    ddp.synchronize();
    results.push_back(zeros(Shape{8}, DType::f32, world().device()));
    copy_elements(results.back(), slice(model.gradient_view(0), 0, 8), world().stream());
  }
  for (int step = 0; step < kSteps; ++step) {
    std::vector<float> found(8);
    copy_elements(view_of(std::span(found)), results[static_cast<std::size_t>(step)], world().stream());
    world().stream().synchronize();
    EXPECT_EQ(found[3], ToyModel::gradient(0, 3, step % ranks())) << "step " << step;
  }
}

TEST(GpuReducer, R5TheComputeStreamWaitsAndTheHostDoesNot) {
  DeviceToy<float> model(world(), {std::size_t{64} << 20});
  DistributedDataParallelOptions options;
  options.statistics = true;  // R20: these do not make it wait
  auto ddp = make(model, options);
  for (int step = 0; step < 2; ++step) {  // past the rebuild
    ddp.gradient_ready(0);
    ddp.synchronize();
  }
  world().stream().synchronize();
  Tensor const scratch = zeros(Shape{std::size_t{1} << 30}, DType::u8, world().device());
  Event done(world().device());
  model.fill_gradient(0, me());  // waits for the GPU
  world().barrier();
  for (int i = 0; i < 200; ++i)
    zero_fill(scratch, world().stream());  // a backward pass of tens of milliseconds
  ddp.gradient_ready(0);
  ddp.synchronize();
  done.record(world().stream());
  EXPECT_FALSE(done.reached()) << "the host waited in the step";
  expect_averages(model, 0);  // in order behind the step
  EXPECT_TRUE(done.reached());
}

TEST(GpuReducer, R6NothingIsSentUnderNoSync) {
  DeviceToy<float> model(world(), {3000});
  auto ddp = make(model);
  std::vector<float> const mine(3000, static_cast<float>(me() + 1));
  for (int step = 0; step < 2; ++step) {
    {
      NoSyncGuard const guard = ddp.no_sync();
      model.write_gradient(0, mine);
      ddp.gradient_ready(0);
      ddp.synchronize();
      EXPECT_EQ(model.gradient(0)[9], mine[9]) << "sent under no_sync";
    }
    ddp.gradient_ready(0);  // the sum of the micro-steps, as it stands there
    ddp.synchronize();
    EXPECT_NEAR(model.gradient(0)[9], static_cast<float>(ranks() + 1) / 2, 1e-5);
  }
}

TEST(GpuReducer, R7AnErrorForUnusedParametersNamesThemAndTheRanks) {
  DeviceToy<float> model(world(), {10, 20});
  DistributedDataParallelOptions options;
  options.unused = DistributedDataParallelOptions::Unused::error;
  OwnReducer reducer(model, options);
  reducer.step(2);
  EXPECT_THAT(message_of([&] { reducer.step(me() == 0 ? 1 : 2); }), HasSubstr("\"p0\" on rank 0"));
  EXPECT_THAT(message_of([&] { reducer->synchronize(); }), HasSubstr("cannot be used any more"));
}

TEST(GpuReducer, R8AMarkTooManyIsAnErrorThatNamesTheParameter) {
  DeviceToy<float> model(world(), {10, 20});
  OwnReducer reducer(model);
  reducer->gradient_ready(1);
  EXPECT_THAT(message_of([&] { reducer->gradient_ready(1); }), HasSubstr("\"p1\""));
}

TEST(GpuReducer, R9F7OtherShapesAreOneErrorOnEveryRank) {
  if (ranks() < 2) GTEST_SKIP() << "one rank differs from nobody";
  DeviceToy<float> model(world(), {10, me() == 1 ? std::size_t{21} : std::size_t{20}});
  auto const error = error_of<CommError>([&] { static_cast<void>(make(model)); });
  EXPECT_EQ(error.code(), ErrorCode::mismatch);
  EXPECT_THAT(error.what(), HasSubstr("rank 1: parameter 1 \"p1\" is f32[21] on cuda here, f32[20] on cuda"));
}

TEST(GpuReducer, R12WeightsOnSomeRanksOnlyAreAnErrorInsteadOfAHang) {
  if (ranks() < 2) GTEST_SKIP() << "one rank differs from nobody";
  DeviceToy<float> model(world(), {10});
  OwnReducer reducer(model);
  reducer.step(1);
  reducer.wait();
  world().barrier();  // what two others find must not reach a third in its first step
  if (me() == 0) reducer->set_weight(1.0);
  auto const step = [&] {
    reducer.step(1);
    reducer.wait();
  };
  EXPECT_THAT(message_of(step),
              ContainsRegex("set_weight\\(\\) was called on rank 0 and not on rank [1-9] in step 1"));
}

TEST(GpuReducer, ACapturedStepIsRefusedBeforeItBeginsAndHarmsNothing) {
  DeviceToy<float> model(world(), {3000});
  DistributedDataParallelOptions options;
  options.statistics = true;
  auto ddp = make(model, options);
  DeviceGuard const guard(world().device());
  CUstream_st* const stream = cuda_stream(world().stream()).handle();
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  std::string const first = message_of([&] { ddp.gradient_ready(0); });
  std::string const second = message_of([&] { ddp.synchronize(); });
  std::string const third = message_of([&] { ddp.begin_forward(); });
  EXPECT_NO_THROW(static_cast<void>(ddp.statistics())) << "R20: it makes no call of CUDA";
  EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  EXPECT_THAT(first, HasSubstr("cannot be captured into a CUDA graph"));
  EXPECT_THAT(first, HasSubstr("call gradient_ready() and synchronize() between the replays"));
  EXPECT_EQ(second, first);
  EXPECT_EQ(third, first);
  model.fill_gradients(me());
  ddp.gradient_ready(0);
  ddp.synchronize();
  expect_averages(model, 0);
}

TEST(GpuReducer, R16SeveralTypesInOneModelAndSeveralObjectsInOneProgram) {
  DeviceToy<float> wide(world(), {1000, 50});
  DeviceToy<bfloat16> narrow(world(), {333, 2048}, "n");
  auto parameters = wide.parameters();
  for (Parameter& each : narrow.parameters()) parameters.push_back(each);
  DistributedDataParallel ddp(world(), parameters, small_buckets());
  DeviceToy<float> other_model(world(), {77});
  auto other = make(other_model);
  for (int step = 0; step < 3; ++step) {
    wide.fill_gradients(me());
    narrow.fill_gradients(me());
    other_model.fill_gradients(me());
    ddp.gradient_ready(0);
    mark_all(other);
    for (std::size_t const p : {3, 1, 2}) ddp.gradient_ready(p);
    other.synchronize();
    ddp.synchronize();
    for (std::size_t const p : {0, 1}) {
      expect_averages(wide, p);
      expect_averages(narrow, p);
    }
    expect_averages(other_model, 0);
  }
}

// As an exception in rank 1's backward pass would do it.
TEST(GpuReducer, ARankThatGivesUpInAStepEndsThatOfTheOthers) {
  if (ranks() < 2) GTEST_SKIP() << "there is nobody to miss";
  DeviceToy<float> model(world(), {10, 20});
  OwnReducer reducer(model);
  if (me() == 1) {
    reducer.step(2);
    reducer->gradient_ready(1);
    return;
  }
  auto const steps = [&] {  // rank 1 may be gone before the first one's end
    reducer.step(2);
    reducer.step(2);
    reducer.wait();
  };
  EXPECT_THAT(message_of(steps), HasSubstr("rank 1"));
}

}  // namespace
}  // namespace ddp::testing
