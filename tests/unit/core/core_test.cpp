#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string_view>
#include <type_traits>
#include <vector>

#include "ddp/core/tensor.hpp"
#include "ddp/core/text.hpp"

namespace ddp {
namespace {

// The slow, obvious oracle: the nearest of all finite float16 values, ties to the even pattern.
std::uint16_t nearest_float16(float value) {
  std::uint16_t best = 0;
  double best_distance = std::numeric_limits<double>::infinity();
  for (std::uint32_t bits = 0; bits < 0x7c00U; ++bits) {
    double const exponent = static_cast<double>(bits >> 10);
    double const mantissa = static_cast<double>(bits & 0x3ffU) / 1024.0;
    double const candidate = exponent == 0 ? std::ldexp(mantissa, -14)
                                           : std::ldexp(1.0 + mantissa, static_cast<int>(exponent) - 15);
    double const distance = std::abs(candidate - std::abs(static_cast<double>(value)));
    if (distance < best_distance || (distance == best_distance && bits % 2 == 0)) {
      best = static_cast<std::uint16_t>(bits);
      best_distance = distance;
    }
  }
  return static_cast<std::uint16_t>(best | (std::signbit(value) ? 0x8000U : 0U));
}

TEST(Float16, EveryBitPatternSurvivesTheRoundTrip) {
  for (std::uint32_t bits = 0; bits < 0x10000U; ++bits) {
    float16 half;
    half.bits = static_cast<std::uint16_t>(bits);
    auto const wide = static_cast<float>(half);
    if (std::isnan(wide)) {
      EXPECT_EQ(float16(wide).bits & 0x7e00U, 0x7e00U);
    } else {
      EXPECT_EQ(float16(wide).bits, bits);
    }
  }
}

TEST(Float16, RoundsToTheNearestTiesToEven) {
  for (float const value : {0.1F, -3.14159F, 1e-7F, 5.9e-8F, 2.9e-8F, 6.1e-5F, 65504.0F, 1.00048828125F,
                            1.00146484375F, 1e-4F, 2049.0F, 2051.0F}) {
    EXPECT_EQ(float16(value).bits, nearest_float16(value)) << value;
  }
}

TEST(Float16, OverflowIsInfinity) {
  EXPECT_EQ(float16(65519.0F).bits, 0x7bff);
  EXPECT_EQ(float16(65520.0F).bits, 0x7c00);
  EXPECT_EQ(float16(-1e30F).bits, 0xfc00);
}

TEST(BFloat16, RoundsToTheNearestTiesToEven) {
  EXPECT_EQ(bfloat16(1.0F).bits, 0x3f80);
  EXPECT_EQ(bfloat16(std::bit_cast<float>(0x3f808000U)).bits, 0x3f80) << "tie, down to even";
  EXPECT_EQ(bfloat16(std::bit_cast<float>(0x3f818000U)).bits, 0x3f82) << "tie, up to even";
  EXPECT_EQ(bfloat16(std::bit_cast<float>(0x3f808001U)).bits, 0x3f81);
  EXPECT_TRUE(std::isnan(static_cast<float>(bfloat16(std::numeric_limits<float>::quiet_NaN()))));
  EXPECT_EQ(bfloat16(std::numeric_limits<float>::infinity()).bits, 0x7f80);
}

TEST(DType, HasANameASizeAndATypeOfCxx) {
  std::vector<std::string_view> names;
  for (std::size_t d = 0; d < kDTypeCount; ++d) {
    auto const dtype = static_cast<DType>(d);
    names.push_back(to_string(dtype));
    dispatch(dtype, [&]<class T>(T) {
      EXPECT_EQ(dtype_of<T>, dtype);
      EXPECT_EQ(size_of(dtype), sizeof(T)) << dtype;
      EXPECT_EQ(is_floating(dtype), !std::is_integral_v<T>) << dtype;
    });
  }
  EXPECT_EQ(names, (std::vector<std::string_view>{"f64", "f32", "f16", "bf16", "i32", "i64", "u8", "i8",
                                                  "i16", "bool"}));
  EXPECT_EQ(to_string(static_cast<DType>(kDTypeCount)), "unknown dtype");
}

TEST(DType, SmallIntegersAndTruthValuesAreOnlyCarried) {
  for (DType const dtype : {DType::i8, DType::i16, DType::boolean})
    EXPECT_FALSE(is_reducible(dtype)) << dtype;
  for (DType const dtype :
       {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i32, DType::i64, DType::u8}) {
    EXPECT_TRUE(is_reducible(dtype)) << dtype;
  }
}

TEST(Shape, CountsAndPrints) {
  EXPECT_EQ(to_string(Shape{300, 784}), "[300,784]");
  EXPECT_EQ((Shape{300, 784}.count()), 235200U);
  EXPECT_EQ(Shape{}.count(), 1U) << "a scalar";
  EXPECT_EQ((Shape{3, 0}.count()), 0U);
  EXPECT_THROW((Shape{1, 1, 1, 1, 1, 1, 1, 1, 1}), Error);
  EXPECT_THROW((Shape{std::size_t{1} << 33, std::size_t{1} << 31}), Error)
      << "more elements than memory can have";
  EXPECT_EQ((Shape{SIZE_MAX, 0, SIZE_MAX}.count()), 0U);
}

TEST(Tensor, IsZeroedAlignedAndShared) {
  Tensor const tensor = Tensor::zeros(Shape{3, 5}, DType::f64);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.view().data) % 64, 0U);
  Tensor const same = tensor;
  same.as<double>()[14] = 7.0;
  EXPECT_EQ(tensor.as<double>()[14], 7.0);
  EXPECT_EQ(tensor.as<double>()[0], 0.0);
  EXPECT_THROW(static_cast<void>(tensor.as<float>()), Error);
}

TEST(Tensor, SliceStaysInside) {
  Tensor const tensor = Tensor::zeros(Shape{10}, DType::i32);
  EXPECT_EQ(slice(tensor, 4, 6).data, tensor.as<std::int32_t>().data() + 4);
  EXPECT_THROW(static_cast<void>(slice(tensor, 5, 6)), Error);
  EXPECT_THROW(static_cast<void>(slice(tensor, 11, 0)), Error);
}

TEST(Text, JoinsAndNames) {
  EXPECT_EQ(text("rank ", Rank{2}, " of ", 4), "rank 2 of 4");
  EXPECT_EQ(join(std::vector<Rank>{Rank{0}, Rank{2}}, ", "), "0, 2");
  EXPECT_EQ(to_string(25_MiB), "25 MiB");
  EXPECT_EQ(to_string(Device{DeviceKind::cuda, DeviceIndex{1}}), "cuda:1");
}

}  // namespace
}  // namespace ddp
