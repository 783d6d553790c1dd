// R15 and R17, also with R11: steps with NaN or infinity that are flagged, where buckets are updated one by
// one and ranks run out of data.
#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ddp/core/text.hpp"
#include "multi_process/uneven_steps.hpp"
#include "support/models/own_reducer.hpp"
#include "support/ranks/in_process_worlds.hpp"

namespace ddp::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using Nonfinite = DistributedDataParallelOptions::Nonfinite;
using Uneven = DistributedDataParallelOptions::Uneven;

int last() { return world().size() - 1; }
// Of a step: which parameter of which rank has such an element.
struct Spoilt {
  std::size_t parameter;
  int rank;
  float element;
};

float gradient_in_step(int rank, int step, std::size_t parameter) {
  return static_cast<float>(12 * (1 + (2 * rank + step + static_cast<int>(parameter)) % 5));
}

void write_gradients(DeviceToy<float>& model, int step, Spoilt const* spoilt) {
  for (std::size_t p = 0; p < kCounts.size(); ++p) {
    std::vector<float> gradient(kCounts[p], gradient_in_step(me(), step, p));
    if (spoilt != nullptr && spoilt->rank == me() && spoilt->parameter == p) {
      gradient[gradient.size() * 2 / 3] = spoilt->element;
    }
    model.write_gradient(p, gradient);
  }
}

// Copies of the averages, and of what found_nonfinite() says, made where each bucket is updated.
class PerBucket {
 public:
  PerBucket(DistributedDataParallel& ddp, DeviceToy<float> const& model) {
    for (std::size_t const count : kCounts) {
      copies_.push_back(zeros(Shape{count}, DType::f32, world().device()));
    }
    ddp.on_bucket_ready([this, &ddp, &model](ReducedBucket const& bucket) {
      if (bucket.index == 0) calls_ = 0;
      ++calls_;
      while (flags_.size() < bucket.count) flags_.push_back(zeros(Shape{1}, DType::f32, world().device()));
      copy_elements(flags_[bucket.index], ddp.found_nonfinite(), bucket.stream);
      if (bucket.stream.device().kind == DeviceKind::cpu) {  // synchronize() waits for this thread
        host_stream(bucket.stream).enqueue([&ddp, asked = flags_[bucket.index].view().data] {
          *static_cast<float*>(asked) += 2 * *static_cast<float const*>(ddp.found_nonfinite().data);
        });
      }
      for (BucketSlice const& piece : bucket.slices) {
        copy_elements(slice(copies_[piece.parameter], piece.parameter_offset, piece.count),
                      slice(model.gradient_view(piece.parameter), piece.parameter_offset, piece.count),
                      bucket.stream);
      }
    });
  }
  [[nodiscard]] std::vector<float> flags() const {
    float const times = world().device().kind == DeviceKind::cpu ? 3 : 1;
    std::vector<float> all;
    for (std::size_t b = 0; b < calls_; ++b) all.push_back(read(flags_[b])[0] / times);
    return all;
  }
  [[nodiscard]] std::vector<float> copy(std::size_t parameter) const { return read(copies_[parameter]); }

  [[nodiscard]] static std::vector<float> read(TensorView const& from) {
    std::vector<float> elements(from.count());
    copy_elements(view_of(std::span(elements)), from, world().stream());
    world().stream().synchronize();
    return elements;
  }

 private:
  std::vector<Tensor> copies_;
  std::vector<Tensor> flags_;
  std::size_t calls_ = 0;  // of the last step
};

struct SkipWay {
  GradientStorage storage = GradientStorage::arena;
  bool per_bucket = false;
  bool clips = false;  // to a norm that nothing finite reaches
  bool bf16 = false;
  Uneven uneven = Uneven::refuse;
};

DistributedDataParallelOptions options_of(SkipWay const& way) {
  DistributedDataParallelOptions options{
      .bucket_bytes = 2000_B, .first_bucket_bytes = 500_B, .storage = way.storage};
  options.nonfinite = Nonfinite::flag;
  options.uneven = way.uneven;
  if (way.clips) options.clip_norm = 1e9;
  if (way.bf16) options.reduce_dtype = DType::bf16;
  return options;
}

// What every rank knows after a step, whether it had data for it or not.
void expect_step(SkipWay const& way, DistributedDataParallel& ddp, DeviceToy<float> const& model,
                 PerBucket const* per_bucket, int step, Spoilt const* spoilt) {
  SCOPED_TRACE(text(to_string(way.storage), ", per bucket ", way.per_bucket, ", clips ", way.clips, ", bf16 ",
                    way.bf16, ", uneven ", static_cast<int>(way.uneven), ", step ", step));
  float const flag = spoilt != nullptr ? 1.0F : 0.0F;
  ASSERT_EQ(PerBucket::read(ddp.found_nonfinite())[0], flag);
  auto const found = ddp.nonfinite_gradients();
  ASSERT_EQ(found.size(), spoilt != nullptr ? 1U : 0U);
  if (spoilt != nullptr) {
    EXPECT_EQ(found[0].parameter, spoilt->parameter);
    EXPECT_EQ(found[0].rank, Rank{spoilt->rank});
  }
  if (per_bucket != nullptr) {
    EXPECT_EQ(per_bucket->flags(), std::vector<float>(ddp.plan().buckets().size(), flag));
  }
  for (std::size_t p = 0; p < kCounts.size(); ++p) {
    if (spoilt != nullptr && spoilt->parameter == p) continue;
    float sum = 0;
    int counted = 0;
    for (int r = 0; r <= last(); ++r) {
      bool const has_data = way.uneven == Uneven::refuse || step < steps_of(r);
      if (has_data) sum += gradient_in_step(r, step, p);
      if (has_data || way.uneven == Uneven::divide_by_all) ++counted;
    }
    float const expected = sum / static_cast<float>(counted);
    auto const is_expected = Each(::testing::FloatNear(expected, expected * (way.bf16 ? 0x1p-7F : 1e-6F)));
    EXPECT_THAT(model.gradient(p), is_expected) << "parameter " << p;
    if (per_bucket != nullptr) {
      EXPECT_THAT(per_bucket->copy(p), is_expected) << "parameter " << p;
    }
  }
}

std::vector<SkipWay> ways(std::vector<Uneven> const& unevens) {
  std::vector<SkipWay> all;
  for (Uneven const uneven : unevens) {
    for (auto const storage : {GradientStorage::arena, GradientStorage::in_place, GradientStorage::copy}) {
      // A communicator of GPUs takes long to make.
      unsigned const stride = world().device().kind == DeviceKind::cuda ? 3 : 1;
      for (unsigned bits = 0; bits < 8; bits += stride) {
        all.push_back({storage, (bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0, uneven});
      }
    }
  }
  return all;
}

TEST(Nonfinite, R15R17EachBucketsUpdateSeesTheFlagOfItsStep) {
  std::vector<Spoilt> const spoilt{{2, last(), kNan}, {0, 0, -kInfinite}, {1, last(), kInfinite}};
  for (SkipWay const& way : ways({Uneven::refuse})) {
    DeviceToy<float> model(world(), kCounts);
    DistributedDataParallel ddp(world(), model.parameters(), options_of(way));
    std::optional<PerBucket> per_bucket;
    if (way.per_bucket) per_bucket.emplace(ddp, model);
    for (int step = 0; step < 6; ++step) {
      auto const* const odd = step % 2 == 0 ? &spoilt[static_cast<std::size_t>(step / 2)] : nullptr;
      write_gradients(model, step, odd);
      for (std::size_t p = 0; p < kCounts.size(); ++p) ddp.gradient_ready(p);  // buckets are rebuilt
      ddp.synchronize();
      expect_step(way, ddp, model, per_bucket ? &*per_bucket : nullptr, step, odd);
    }
  }
}

// Nobody clears gradients: what is left of a spoilt step where a rank has no data is neither sent nor found.
TEST(Nonfinite, R11R15R17ARankWithoutDataIsToldOfTheOthersSpoiltSteps) {
  // Rank 0's only step, one which it takes part in without data, and the last of all.
  std::vector<std::pair<int, Spoilt>> const spoilt{
      {0, {2, 0, kNan}}, {1, {0, last(), kInfinite}}, {steps_of(last()) - 1, {1, last(), kNan}}};
  auto const spoilt_in = [&](int step) -> Spoilt const* {
    for (auto const& [when, what] : spoilt) {
      if (when == step) return &what;
    }
    return nullptr;
  };
  for (SkipWay const& way : ways({Uneven::divide_by_live, Uneven::divide_by_all})) {
    DeviceToy<float> model(world(), kCounts);
    DistributedDataParallel ddp(world(), model.parameters(), options_of(way));
    std::optional<PerBucket> per_bucket;
    if (way.per_bucket) per_bucket.emplace(ddp, model);
    for (int epoch = 0; epoch < 2; ++epoch) {
      int step = 0;
      auto const expect = [&] {
        expect_step(way, ddp, model, per_bucket ? &*per_bucket : nullptr, step, spoilt_in(step));
      };
      for (; step < steps_of(me()); ++step) {
        write_gradients(model, step, spoilt_in(step));
        for (std::size_t p = 0; p < kCounts.size(); ++p) ddp.gradient_ready(p);
        ddp.synchronize();
        expect();
      }
      ddp.join([&] {
        expect();
        ++step;
      });
      EXPECT_EQ(step, steps_of(last())) << "all leave together";
      EXPECT_EQ(PerBucket::read(ddp.found_nonfinite())[0], 1.0F) << "still of the last step";
    }
  }
}

TEST(Nonfinite, R11R17WithErrorARankWithoutDataIsToldTooAndLeavesJoin) {
  if (world().size() == 1) return;
  DeviceToy<float> model(world(), kCounts);
  DistributedDataParallelOptions options = options_of(SkipWay{.uneven = Uneven::divide_by_live});
  options.nonfinite = Nonfinite::error;
  OwnReducer reducer(model, options);
  int followed = 0;
  auto const messages = gathered(message_of([&] {
    for (int step = 0; step < steps_of(me()); ++step) {
      Spoilt const odd{1, last(), kNan};
      write_gradients(model, step, step == 2 ? &odd : nullptr);
      reducer.step(kCounts.size());
    }
    reducer->join([&] { ++followed; }, {});
  }));
  EXPECT_THAT(messages, Each(messages[0]));
  EXPECT_THAT(messages[0], AllOf(HasSubstr("NaN or infinity in synchronised step 2"),
                                 HasSubstr(text("\"p1\" on rank ", last(), ". No weights"))));
  EXPECT_EQ(followed, me() == 0 ? 1 : 0) << "an update of the spoilt step";
}

}  // namespace
}  // namespace ddp::testing
