// D15: options of a model on two devices: those that work there, together, and those that are refused.
#include <gmock/gmock.h>

#include <algorithm>
#include <string>
#include <vector>

#include "ddp/core/text.hpp"
#include "ddp/device/memory.hpp"
#include "ddp/device/tensor_ops.hpp"
#include "ddp/parallel/step_graph.hpp"
#include "support/devices/elements.hpp"
#include "support/devices/other_device.hpp"
#include "support/ranks/in_process_worlds.hpp"
#include "support/ranks/multi_process.hpp"

namespace ddp::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::FloatNear;
using ::testing::HasSubstr;
using Uneven = DistributedDataParallelOptions::Uneven;

std::vector<std::size_t> const kCounts{1500, 300, 40, 700};
int me() { return world().rank().value(); }
Device device_of(std::size_t parameter) { return parameter % 2 == 0 ? world().device() : other_device(); }

// Every second parameter is on the other device.
class Halves {
 public:
  Halves() {
    for (std::size_t p = 0; p < kCounts.size(); ++p) {
      values_.push_back(zeros(Shape{kCounts[p]}, DType::f32, device_of(p)));
      own_.push_back(zeros(Shape{kCounts[p]}, DType::f32, device_of(p)));
      gradients.push_back(own_.back().view());
    }
  }
  [[nodiscard]] std::vector<Parameter> parameters() {
    std::vector<Parameter> list;
    for (std::size_t p = 0; p < kCounts.size(); ++p) {
      list.push_back(
          {text("p", p), values_[p], [this, p](TensorView const& view) { gradients[p] = view; }, own_[p]});
    }
    return list;
  }
  std::vector<TensorView> gradients;

 private:
  std::vector<Tensor> values_;
  std::vector<Tensor> own_;
};

// ---- what works

struct Mixture {
  GradientStorage storage = GradientStorage::arena;
  Uneven uneven = Uneven::refuse;
  bool bf16 = false;
  bool hook = false;
  bool per_bucket = false;
  bool weighted = false;
};

// Rank r has data for 2 + 2r steps, where that may be.
int steps_of(Mixture const& way, int rank) { return way.uneven == Uneven::refuse ? 5 : 2 + 2 * rank; }
float weight_of(Mixture const& way, int rank) { return way.weighted ? static_cast<float>(rank + 1) : 1.0F; }
float gradient_of(int rank, int step, std::size_t parameter) {
  return static_cast<float>(12 * (1 + (rank + step + static_cast<int>(parameter)) % 4));
}

float expected_average(Mixture const& way, int step, std::size_t parameter) {
  float sum = 0;
  float weights = 0;
  for (int r = 0; r < world().size(); ++r) {
    bool const has_data = step < steps_of(way, r);
    if (has_data) sum += weight_of(way, r) * gradient_of(r, step, parameter);
    if (has_data || way.uneven == Uneven::divide_by_all) weights += weight_of(way, r);
  }
  return sum / weights;
}

void train(Mixture const& way) {
  SCOPED_TRACE(text(to_string(way.storage), ", uneven ", static_cast<int>(way.uneven), ", bf16 ", way.bf16,
                    ", hook ", way.hook, ", per bucket ", way.per_bucket, ", weighted ", way.weighted));
  Halves model;
  DistributedDataParallelOptions options{
      .bucket_bytes = 2000_B, .first_bucket_bytes = 500_B, .storage = way.storage};
  options.uneven = way.uneven;
  options.statistics = way.hook;
  options.verify_every = way.weighted ? 2 : 0;
  options.unused = way.per_bucket ? DistributedDataParallelOptions::Unused::zero
                                  : DistributedDataParallelOptions::Unused::error;
  if (way.bf16) options.reduce_dtype = DType::bf16;
  DistributedDataParallel ddp(world(), model.parameters(), options);
  if (way.hook) {
    ddp.set_comm_hook({"own", [](GradientBucket const& bucket) {
                         for (TensorView const& gradients : bucket.gradients) {
                           bucket.communicator.all_reduce(gradients, bucket.op, bucket.stream);
                         }
                       }});
  }
  Halves seen;  // its gradients are copies of the model's
  if (way.per_bucket) {
    ddp.on_bucket_ready([&](ReducedBucket const& bucket) {
      for (BucketSlice const& piece : bucket.slices) {
        EXPECT_EQ(bucket.stream.device(), device_of(piece.parameter));
        copy_elements(slice(seen.gradients[piece.parameter], piece.parameter_offset, piece.count),
                      slice(model.gradients[piece.parameter], piece.parameter_offset, piece.count),
                      bucket.stream);
      }
    });
  }
  int step = 0;
  auto const expect = [&] {
    for (std::size_t p = 0; p < kCounts.size(); ++p) {
      float const expected = expected_average(way, step, p);
      auto const is_expected = Each(FloatNear(expected, expected * (way.bf16 ? 0x1p-7F : 1e-6F)));
      ASSERT_THAT(read(model.gradients[p]), is_expected) << "step " << step << ", parameter " << p;
      if (way.per_bucket) {
        ASSERT_THAT(read(seen.gradients[p]), is_expected) << "step " << step << ", parameter " << p;
      }
      EXPECT_TRUE(ddp.has_gradient(p));
    }
    ++step;
  };
  while (step < steps_of(way, me())) {
    if (way.weighted) ddp.set_weight(weight_of(way, me()));
    for (std::size_t p = 0; p < kCounts.size(); ++p) {  // buckets are rebuilt
      write(model.gradients[p], gradient_of(me(), step, p));
      ddp.gradient_ready(p);
    }
    ddp.synchronize();
    expect();
  }
  if (way.uneven != Uneven::refuse) ddp.join(expect);
  EXPECT_EQ(step, steps_of(way, world().size() - 1));
}

TEST(MixedDevices, D15R7R11R13R15R17OptionsTogetherGiveWhatOneProcessWouldCompute) {
  for (auto const storage : {GradientStorage::arena, GradientStorage::in_place, GradientStorage::copy}) {
    for (Uneven const uneven : {Uneven::refuse, Uneven::divide_by_live, Uneven::divide_by_all}) {
      // A communicator of GPUs takes long to make.
      unsigned const stride = world().device().kind == DeviceKind::cuda ? 5 : 1;
      for (unsigned bits = 0; bits < 16; bits += stride) {
        Mixture const way{storage,         uneven,          (bits & 1) != 0,
                          (bits & 2) != 0, (bits & 4) != 0, (bits & 8) != 0};
        if (way.weighted && uneven == Uneven::divide_by_all) continue;  // refused
        train(way);
      }
    }
  }
}

// ---- what is refused

// On every rank, before any step, and the group goes on.
void expect_refused(DistributedDataParallelOptions const& options, std::string const& message) {
  Halves model;
  auto const refused = [&] { DistributedDataParallel const ddp(world(), model.parameters(), options); };
  EXPECT_EQ(error_of(refused).code(), ErrorCode::unsupported);
  EXPECT_THAT(gathered(message_of(refused)), Each(AllOf(HasSubstr(message), HasSubstr("lie on 2"))));
}

TEST(MixedDevices, D15R15ClippingToANormOfBothDevicesIsRefused) {
  expect_refused({.clip_norm = 1}, "Options::clip_norm and nonfinite work for parameters on one device");
  train({});
}

TEST(MixedDevices, D15R17LookingForNonfiniteGradientsOfBothDevicesIsRefused) {
  for (auto const nonfinite :
       {DistributedDataParallelOptions::Nonfinite::error, DistributedDataParallelOptions::Nonfinite::flag}) {
    expect_refused({.nonfinite = nonfinite}, "clip_norm and nonfinite work for parameters on one device");
  }
  train({});
}

TEST(MixedDevices, D15R24AStepOfBothDevicesIsNotRecordedAndSaysWhy) {
  Halves model;
  DistributedDataParallel ddp(world(), model.parameters());
  int step = 0;
  StepGraph graph(ddp, [&] {
    for (std::size_t p = 0; p < kCounts.size(); ++p) {
      write(model.gradients[p], gradient_of(me(), step, p));
      ddp.gradient_ready(p);
    }
    ddp.synchronize();
  });
  for (; step < 5; ++step) {
    graph.run();
    for (std::size_t p = 0; p < kCounts.size(); ++p) {
      float const expected = expected_average({}, step, p);
      ASSERT_THAT(read(model.gradients[p]), Each(FloatNear(expected, expected * 1e-6F)));
    }
  }
  EXPECT_FALSE(graph.is_recorded());
  EXPECT_THAT(graph.why_eager(), HasSubstr("rank 0: its parameters lie on 2 devices; expected one"));
}

TEST(MixedDevices, D15AStreamOfADeviceWithoutParametersIsRefused) {
  std::vector<float> value(4);
  DistributedDataParallel ddp(world(), {{"w", view_of(std::span(value)), [](auto const&) {}, {}}});
  Device const elsewhere = world().device().kind == DeviceKind::cuda ? world().device() : other_device();
  auto const stream = make_compute_stream(elsewhere);
  EXPECT_THAT(
      message_of([&] { ddp.compute_on(*stream); }),
      HasSubstr(text("expected a stream of a device on which parameters lie, found one of ", elsewhere)));
  auto const other = make_compute_stream({DeviceKind::cpu, DeviceIndex{1}});
  EXPECT_THAT(message_of([&] {
                DistributedDataParallel(world(), {{"w", view_of(std::span(value)), [](auto const&) {}, {}}},
                                        {.compute_stream = other.get()});
              }),
              HasSubstr("expected a stream of"));
}

}  // namespace
}  // namespace ddp::testing
