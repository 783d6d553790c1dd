#include "ddp/device/tensor_ops.hpp"

#include <gmock/gmock.h>

#include <array>
#include <cstdint>
#include <limits>
#include <vector>

#include "support/errors.hpp"

namespace ddp::testing {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

TEST(TensorOps, ManyCopiesAreThoseThatWereAskedFor) {
  HostStream stream;
  std::vector<std::int32_t> from(1000);
  std::vector<std::int32_t> to(from.size(), -1);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::int32_t>(i);
  std::vector<Copy> copies;
  for (std::size_t i = 0; i + 3 <= from.size(); i += 5) {  // 3 of each 5, in the other order
    copies.push_back(
        {slice(view_of(std::span(to)), from.size() - i - 3, 3), slice(view_of(std::span(from)), i, 3)});
  }
  copies.push_back({slice(view_of(std::span(to)), 0, 0), slice(view_of(std::span(from)), 7, 0)});
  copy_elements(copies, stream);
  stream.synchronize();
  for (std::size_t i = 0; i < from.size(); ++i) {
    std::size_t const k = from.size() - 1 - i;
    std::int32_t const expected = k % 5 < 3 ? static_cast<std::int32_t>(k / 5 * 5 + 2 - k % 5) : -1;
    ASSERT_EQ(to[i], expected) << i;
  }
}

TEST(TensorOps, OneCopyThatIsRefusedLeavesAllUndone) {
  auto const stream = HostStream::inline_stream();
  std::vector<float> from(4, 1.0F);
  std::vector<float> to(4, 0.0F);
  std::vector<double> wide(2);
  auto const first = slice(view_of(std::span(to)), 0, 2);
  auto const second = slice(view_of(std::span(to)), 2, 2);
  auto const source = slice(view_of(std::span(from)), 0, 2);
  EXPECT_THAT(
      message_of([&] {
        copy_elements(std::vector<Copy>{{first, source}, {second, view_of(std::span(wide))}}, *stream);
      }),
      HasSubstr("copy_elements: cannot copy f64[2] on cpu:0 to f32[2] on cpu:0 on a stream of cpu:0"));
  EXPECT_THAT(message_of([&] {
                copy_elements(std::vector<Copy>{{first, view_of(std::span(from))}}, *stream);
              }),
              HasSubstr("cannot copy f32[4]"));
  EXPECT_THAT(to, Each(0.0F));
  copy_elements(std::span<Copy const>{}, *stream);
}

TEST(TensorOps, R13ConversionsRoundToTheNearestAndTiesToEven) {
  auto const stream = HostStream::inline_stream();
  std::vector<float> const numbers{1.0F, 1 + 0x1p-8F, 1 + 0x3p-8F, 1 + 0x1p-10F, 65520.0F, 1e30F};
  std::vector<bfloat16> brain(numbers.size());
  std::vector<float16> half(numbers.size());
  std::vector<float> back(numbers.size());
  TensorView const from = view_of(std::span(const_cast<float*>(numbers.data()), numbers.size()));
  convert_elements(std::array{Copy{view_of(std::span(brain)), from}}, *stream);
  convert_elements(std::array{Copy{view_of(std::span(back)), view_of(std::span(brain))}}, *stream);
  EXPECT_THAT(back,
              ElementsAre(1.0F, 1.0F, 1 + 0x1p-6F, 1.0F, 65536.0F, static_cast<float>(bfloat16(1e30F))));
  convert_elements(std::array{Copy{view_of(std::span(half)), from}}, *stream);
  convert_elements(std::array{Copy{view_of(std::span(back)), view_of(std::span(half))}}, *stream);
  float const infinite = std::numeric_limits<float>::infinity();
  EXPECT_THAT(back, ElementsAre(1.0F, 1 + 0x1p-8F, 1 + 0x3p-8F, 1 + 0x1p-10F, infinite, infinite));
  std::vector<double> wide(numbers.size());
  convert_elements(std::array{Copy{view_of(std::span(wide)), from}}, *stream);
  EXPECT_THAT(wide, ElementsAreArray(numbers));
}

TEST(TensorOps, R13AConversionThatIsRefusedLeavesAllUndone) {
  auto const stream = HostStream::inline_stream();
  std::vector<float> from(4, 1.0F);
  std::vector<bfloat16> to(4);
  std::vector<double> wide(4, 2.0);
  std::vector<std::int32_t> whole(4);
  auto const first = Copy{view_of(std::span(to)), view_of(std::span(from))};
  for (Copy const& second : {Copy{view_of(std::span(to)), view_of(std::span(wide))},
                             Copy{slice(view_of(std::span(to)), 0, 2), view_of(std::span(from))},
                             Copy{view_of(std::span(whole)), view_of(std::span(from))}}) {
    EXPECT_THAT(message_of([&] {
                  convert_elements(std::array{first, second}, *stream);
                }),
                HasSubstr("for all copies f32 to bf16"));
  }
  EXPECT_THAT(
      message_of([&] {
        convert_elements(std::array{Copy{view_of(std::span(from)), view_of(std::span(from))}}, *stream);
      }),
      HasSubstr("expected as many elements of two floating point types"));
  for (bfloat16 const each : to) EXPECT_EQ(each.bits, 0);
}

}  // namespace
}  // namespace ddp::testing
