// D13: streams of random numbers that can be drawn again.
#include "ddp/device/random.hpp"

#include <gmock/gmock.h>

#include <cmath>
#include <set>

#include "ddp/device/device_guard.hpp"
#include "ddp/device/logical_device.hpp"
#include "ddp/device/memory.hpp"
#include "device/random/philox.hpp"
#include "support/devices/virtual_cpus.hpp"
#include "support/errors.hpp"

namespace ddp::testing {
namespace {

using ::testing::HasSubstr;

template <class T>
std::vector<T> uniform(RandomGenerator& generator, std::size_t count, double low = 0, double high = 1) {
  std::vector<T> numbers(count);
  fill_uniform(view_of(std::span(numbers)), generator, *HostStream::inline_stream(), low, high);
  return numbers;
}

template <class T>
std::vector<T> normal(RandomGenerator& generator, std::size_t count, double mean = 0, double deviation = 1) {
  std::vector<T> numbers(count);
  fill_normal(view_of(std::span(numbers)), generator, *HostStream::inline_stream(), mean, deviation);
  return numbers;
}

class Random : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    set_logical_devices({.kind = DeviceKind::cpu, .limits = {std::nullopt, std::nullopt, std::nullopt}});
  }
  void SetUp() override {
    set_random_rank(Rank{0});
    manual_seed_all(0);
  }
};

// The lines "philox4x32 10" of kat_vectors of Random123.
TEST(Philox, HasTheKnownAnswersOfItsAuthors) {
  static_assert(philox({{0, 0, 0, 0}}, 0, 0) ==
                PhiloxBlock{{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}});
  constexpr std::uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(philox({{kOnes, kOnes, kOnes, kOnes}}, kOnes, kOnes),
            (PhiloxBlock{{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}}));
  EXPECT_EQ(philox({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0xa4093822, 0x299f31d0),
            (PhiloxBlock{{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}));
}

TEST(Philox, SeedIsTheKeyAndOffsetAndStreamAreTheCounter) {
  RandomSource const source{0x299f31d0a4093822, 0x0370734413198a2e, 0x85a308d3243f6a80};
  EXPECT_EQ(source.block(8), (PhiloxBlock{{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}));
}

TEST_F(Random, NumbersAreThoseOfTheBlocksInTheirOrder) {
  RandomGenerator generator(0);
  auto const numbers = uniform<float>(generator, 6);
  EXPECT_EQ(numbers[0], static_cast<float>(0x6627e8) * 0x1p-24F);
  EXPECT_EQ(numbers[3], static_cast<float>(0x9b00db) * 0x1p-24F);
  EXPECT_EQ(generator.offset(), 2U) << "blocks, the last one in part";
  RandomGenerator again(0);
  EXPECT_EQ(uniform<double>(again, 1)[0], static_cast<double>(0xe169c58d6627e8d5 >> 11) * 0x1p-53);
}

TEST_F(Random, TheSameSeedAndStreamGiveTheSameNumbersOthersOthers) {
  RandomGenerator a(7, 1);
  RandomGenerator b(7, 1);
  RandomGenerator other_stream(7, 2);
  RandomGenerator other_seed(8, 1);
  auto const numbers = uniform<float>(a, 1000);
  EXPECT_EQ(uniform<float>(b, 1000), numbers);
  EXPECT_NE(uniform<float>(other_stream, 1000), numbers);
  EXPECT_NE(uniform<float>(other_seed, 1000), numbers);
  EXPECT_NE(uniform<float>(a, 1000), numbers) << "it goes on";
}

TEST_F(Random, UniformNumbersLieInTheirRangeAndFillItEvenly) {
  RandomGenerator generator(1);
  constexpr std::size_t kCount = 40'000;
  std::array<int, 10> histogram{};
  for (float const x : uniform<float>(generator, kCount, -2, 3)) {
    ASSERT_GE(x, -2.0F);
    ASSERT_LT(x, 3.0F);
    ++histogram[static_cast<std::size_t>((x + 2) * 2)];
  }
  // Fixed seed: these are the same on every machine. 5 standard deviations of a bin are 300.
  for (int const bin : histogram) EXPECT_NEAR(bin, kCount / 10, 300);
  for (float const x : uniform<float>(generator, 1000, 1, std::nextafter(1.0F, 2.0F))) EXPECT_EQ(x, 1.0F);
}

template <class T>
void expect_standard_normal() {
  RandomGenerator generator(3);
  constexpr std::size_t kCount = 40'000;
  double sum = 0;
  double squares = 0;
  double product = 0;  // of neighbours, which come from one block
  double before = 0;
  for (T const x : normal<T>(generator, kCount, 10, 2)) {
    double const z = (static_cast<double>(x) - 10) / 2;
    sum += z;
    squares += z * z;
    product += z * before;
    before = z;
  }
  double const five_sigma = 5 / std::sqrt(kCount);
  EXPECT_NEAR(sum / kCount, 0, five_sigma);
  EXPECT_NEAR(squares / kCount, 1, five_sigma * std::sqrt(2));
  EXPECT_NEAR(product / kCount, 0, five_sigma);
}
TEST_F(Random, NormalNumbersHaveTheirMeanAndDeviation) {
  expect_standard_normal<float>();
  expect_standard_normal<double>();
}

TEST_F(Random, HalfTypesAreTheFloatsRounded) {
  RandomGenerator as_float(5);
  RandomGenerator as_half(5);
  RandomGenerator as_bfloat(5);
  auto const floats = uniform<float>(as_float, 101);
  auto const halves = uniform<float16>(as_half, 101);
  auto const bfloats = uniform<bfloat16>(as_bfloat, 101);
  for (std::size_t i = 0; i < floats.size(); ++i) {
    EXPECT_EQ(static_cast<float>(halves[i]), static_cast<float>(float16(floats[i])));
    EXPECT_EQ(static_cast<float>(bfloats[i]), static_cast<float>(bfloat16(floats[i])));
  }
}

TEST_F(Random, AStateThatIsPutBackDrawsTheSameAgain) {
  RandomGenerator generator(11, 4);
  static_cast<void>(uniform<float>(generator, 77));
  TensorView const state = generator.state();
  EXPECT_EQ(describe(state), "i64[3] on cpu:0");
  auto const words = state.as<std::int64_t>();
  std::vector<std::int64_t> const saved(words.begin(), words.end());
  auto const expected = normal<double>(generator, 50);
  RandomGenerator restored(0);
  std::copy(saved.begin(), saved.end(), restored.state().as<std::int64_t>().begin());
  EXPECT_EQ(restored.seed(), 11U);
  EXPECT_EQ(normal<double>(restored, 50), expected);
}

TEST_F(Random, D13EachRankAndDeviceHasAStreamOfItsOwn) {
  std::set<std::uint64_t> streams;
  for (int rank = 0; rank < 3; ++rank) {
    set_random_rank(Rank{rank});
    manual_seed_all(42);
    for (int i = 0; i < 3; ++i) {
      RandomGenerator const& generator = default_generator(cpu(i));
      EXPECT_EQ(generator.seed(), 42U);
      EXPECT_EQ(generator.stream(), random_stream(Rank{rank}, cpu(i)));
      streams.insert(generator.stream());
    }
  }
  EXPECT_EQ(streams.size(), 9U);
  EXPECT_FALSE(streams.contains(0));
  EXPECT_NE(random_stream(Rank{0}, cpu(0)), random_stream(Rank{0}, {DeviceKind::cuda, DeviceIndex{0}}));
}

TEST_F(Random, D13EveryRankCanDrawTheSame) {
  std::set<std::vector<float>> drawn;
  for (int rank = 0; rank < 3; ++rank) {
    set_random_rank(Rank{rank});
    manual_seed_all(42, SeedScope::every_rank);
    drawn.insert(uniform<float>(default_generator(cpu(rank)), 10));
  }
  EXPECT_EQ(drawn.size(), 1U) << "for initial values";
}

TEST_F(Random, D13ASeedStartsTheStreamOfOneDeviceAgain) {
  manual_seed(cpu(1), 5);
  auto const expected = uniform<float>(default_generator(cpu(1)), 10);
  static_cast<void>(uniform<float>(default_generator(cpu(0)), 10));
  std::uint64_t const other = default_generator(cpu(0)).offset();
  manual_seed(cpu(1), 5);
  EXPECT_EQ(uniform<float>(default_generator(cpu(1)), 10), expected);
  EXPECT_EQ(default_generator(cpu(0)).offset(), other) << "another device is not concerned";
  set_device(cpu(2));
  manual_seed(9);
  EXPECT_EQ(default_generator(cpu(2)).seed(), 9U) << "the current device's";
  EXPECT_EQ(default_generator(cpu(1)).seed(), 5U);
  set_device(cpu(0));
}

TEST_F(Random, D13AGeneratorSeededBeforeTheRankIsKnownGoesOnInTheRanksStream) {
  RandomGenerator& generator = default_generator(cpu(0));
  static_cast<void>(uniform<float>(generator, 8));
  set_random_rank(Rank{5});
  EXPECT_EQ(generator.stream(), random_stream(Rank{5}, cpu(0)));
  EXPECT_EQ(generator.offset(), 2U);
}

TEST_F(Random, WhatCannotBeFilledIsRefusedAndDrawsNothing) {
  RandomGenerator generator(1);
  auto const stream = HostStream::inline_stream();
  std::vector<std::int32_t> whole(4);
  EXPECT_THAT(message_of([&] { fill_uniform(view_of(std::span(whole)), generator, *stream); }),
              HasSubstr("expected a tensor of f64, f32, f16 or bf16, found i32[4] on cpu:0"));
  std::vector<float> some(4);
  EXPECT_THAT(message_of([&] { fill_uniform(view_of(std::span(some)), generator, *stream, 1, 1); }),
              HasSubstr("[1, 1)"));
  EXPECT_THAT(message_of([&] { fill_normal(view_of(std::span(some)), generator, *stream, 0, -1); }),
              HasSubstr("standard deviation"));
  EXPECT_THAT(message_of([&] { fill_normal(zeros(Shape{4}, DType::f32, cpu(1)), generator, *stream); }),
              HasSubstr("on a stream of cpu:0"));
  EXPECT_EQ(generator.offset(), 0U);
  EXPECT_EQ(error_of([] { manual_seed(cpu(7), 1); }).code(), ErrorCode::not_found);
}

}  // namespace
}  // namespace ddp::testing
