// R13 and R14: gradients that travel in another floating point type than they have.
#include <gmock/gmock.h>

#include <cmath>

#include "support/errors.hpp"
#include "support/models/device_toy.hpp"
#include "support/ranks/in_process_worlds.hpp"
#include "support/ranks/multi_process.hpp"

namespace ddp::testing {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// What buckets travel as.
std::vector<DType> seen_dtypes(DistributedDataParallel& ddp) {
  std::vector<DType> seen;
  ddp.set_comm_hook({"look", [&seen](GradientBucket const& bucket) {
                       for (TensorView const& gradients : bucket.gradients) {
                         seen.push_back(gradients.dtype);
                         bucket.communicator.all_reduce(gradients, bucket.op, bucket.stream);
                       }
                     }});
  mark_all(ddp);
  ddp.synchronize();
  world().stream().synchronize();
  return seen;
}

template <class T>
std::vector<DType> seen_as(DType reduce_dtype) {
  DeviceToy<T> model(world(), {100});
  DistributedDataParallel ddp(world(), model.parameters(), {.reduce_dtype = reduce_dtype});
  return seen_dtypes(ddp);
}

TEST(ReduceDtype, R14IsTheTypeInWhichBucketsAreReduced) {
  EXPECT_THAT(seen_as<bfloat16>(DType::f32), ElementsAre(DType::f32));
  EXPECT_THAT(seen_as<float16>(DType::f32), ElementsAre(DType::f32));
  EXPECT_THAT(seen_as<float>(DType::bf16), ElementsAre(DType::bf16));
  EXPECT_THAT(seen_as<float>(DType::f16), ElementsAre(DType::f16));
  EXPECT_THAT(seen_as<double>(DType::f32), ElementsAre(DType::f32));
  EXPECT_THAT(seen_as<float>(DType::f32), ElementsAre(DType::f32));
}

// 2^-10 beside 1 is lost in bf16 and kept in f16.
TEST(ReduceDtype, R13TheWireRoundsAndResultsHaveTheGradientsType) {
  float const value = 1.0F + 0x1p-10F;
  for (auto const& [dtype, expected] : {std::pair{DType::bf16, 1.0F}, std::pair{DType::f16, value}}) {
    DeviceToy<float> model(world(), {1000, 3});
    DistributedDataParallel ddp(world(), model.parameters(), {.reduce_dtype = dtype});
    for (std::size_t p = 0; p < 2; ++p) model.write_gradient(p, std::vector<float>(p == 0 ? 1000 : 3, value));
    mark_all(ddp);
    ddp.synchronize();
    // An average of equal numbers over three ranks may be off by a rounding of the wire's type.
    float const rounding = world().size() == 3 ? 0x1p-8F : 0.0F;
    EXPECT_THAT(model.gradient(0), Each(::testing::FloatNear(expected, rounding))) << dtype;
    EXPECT_THAT(model.gradient(1), Each(::testing::FloatNear(expected, rounding))) << dtype;
  }
}

// The sum needs more bits than the gradients have, and the result fits again: two roundings would show.
TEST(ReduceDtype, R14SumsOf16BitGradientsAreRoundedOnce) {
  DeviceToy<bfloat16> model(world(), {4096, 5});
  DistributedDataParallelOptions options{.reduction = DistributedDataParallelOptions::Reduction::sum,
                                         .reduce_dtype = DType::f32};
  DistributedDataParallel ddp(world(), model.parameters(), options);
  float const mine = world().rank() == 0 ? 256.0F : 1.0F;
  for (std::size_t p = 0; p < 2; ++p) {
    model.write_gradient(p, std::vector<bfloat16>(p == 0 ? 4096 : 5, bfloat16(mine)));
  }
  mark_all(ddp);
  ddp.synchronize();
  auto const sum = static_cast<float>(bfloat16(256.0F + static_cast<float>(world().size() - 1)));
  for (std::size_t p = 0; p < 2; ++p) {
    for (bfloat16 const found : model.gradient(p)) ASSERT_EQ(static_cast<float>(found), sum);
  }
}

struct DtypeWay {
  GradientStorage storage;
  bool from_sources;
};

void expect_averages(DtypeWay way, DType reduce_dtype) {
  std::vector<std::size_t> const counts{1500, 3, 700, 1};
  DeviceToy<float> model(world(), counts);
  DistributedDataParallelOptions options{
      .bucket_bytes = 2000_B, .first_bucket_bytes = 500_B, .storage = way.storage};
  options.reduce_dtype = reduce_dtype;
  DistributedDataParallel ddp(world(), model.parameters(), options);
  std::vector<Tensor> sources;
  for (std::size_t const count : counts) {
    sources.push_back(zeros(Shape{count}, DType::f32, world().device()));
  }
  int const ranks = world().size();
  for (int step = 0; step < 4; ++step) {  // in the parameters' order: buckets are rebuilt after the first
    bool const last_is_unused = step == 2 && world().rank() == 0;
    {
      NoSyncGuard const guard = ddp.no_sync(step == 3);
      model.fill_gradients(world().rank().value());
      for (std::size_t p = 0; p < counts.size(); ++p) {
        if (p + 1 == counts.size() && last_is_unused) continue;
        if (way.from_sources) {
          copy_elements(sources[p], model.gradient_view(p), world().stream());
          zero_fill(model.gradient_view(p), world().stream());
          ddp.gradient_ready(p, sources[p]);
        } else {
          ddp.gradient_ready(p);
        }
      }
      ddp.synchronize();
    }
    if (step == 3) continue;
    for (std::size_t p = 0; p < counts.size(); ++p) {
      auto const found = model.gradient(p);
      bool const unused = step == 2 && p + 1 == counts.size();
      for (std::size_t i = 0; i < found.size(); ++i) {
        float expected = ToyModel::average_gradient(p, i, ranks);
        if (unused) expected -= ToyModel::gradient(p, i, 0) / static_cast<float>(ranks);
        ASSERT_NEAR(found[i], expected, std::abs(expected) * 0x1p-7F)
            << to_string(way.storage) << ", sources " << way.from_sources << ", " << reduce_dtype << ", step "
            << step << ", parameter " << p << " element " << i;
      }
    }
  }
}

TEST(ReduceDtype, R13EveryStorageUnusedParametersAndRebuiltBuckets) {
  for (DType const dtype : {DType::bf16, DType::f16, DType::f64}) {
    expect_averages({GradientStorage::arena, false}, dtype);
    expect_averages({GradientStorage::arena, true}, dtype);
    expect_averages({GradientStorage::in_place, false}, dtype);
    expect_averages({GradientStorage::copy, false}, dtype);
  }
}

TEST(ReduceDtype, R13WeightsHoldInTheTypeOfTheWire) {
  DeviceToy<float> model(world(), {512});
  DistributedDataParallel ddp(world(), model.parameters(), {.reduce_dtype = DType::bf16});
  int const ranks = world().size();
  float const me = static_cast<float>(world().rank().value());
  for (int step = 0; step < 3; ++step) {
    model.write_gradient(0, std::vector<float>(512, 4.0F * me));
    ddp.set_weight(me);
    ddp.gradient_ready(0);
    ddp.synchronize();
    float weights = 0;
    float sum = 0;
    for (int r = 0; r < ranks; ++r) {
      weights += static_cast<float>(r);
      sum += 4.0F * static_cast<float>(r * r);
    }
    float const expected = weights == 0 ? 0.0F : sum / weights;
    EXPECT_THAT(model.gradient(0), Each(::testing::FloatNear(expected, expected * 0x1p-7F)));
  }
}

TEST(ReduceDtype, R13OptionsThatMakeNoSenseAreRefusedOnEveryRank) {
  DeviceToy<float> model(world(), {8});
  EXPECT_THAT(
      message_of([&] { DistributedDataParallel(world(), model.parameters(), {.reduce_dtype = DType::i32}); }),
      HasSubstr("Options::reduce_dtype: expected a floating point type, found i32"));
  if (world().size() == 1) return;
  DistributedDataParallelOptions options;
  if (world().rank() == 0) options.reduce_dtype = DType::bf16;
  EXPECT_THAT(message_of([&] { DistributedDataParallel(world(), model.parameters(), options); }),
              HasSubstr("sent as they are"));
}

}  // namespace
}  // namespace ddp::testing
