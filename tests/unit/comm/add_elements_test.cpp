// Sums of elements that one device reaches, on CPUs and GPUs, beside sums on the host.
#include "comm/kernels/add_elements.hpp"

#include <gmock/gmock.h>

#include <random>

#include "ddp/core/text.hpp"
#include "support/devices/test_devices.hpp"

namespace ddp::testing {
namespace {

using ::testing::ElementsAre;

// Less than a thread adds at once, such packs alone, packs and a rest, more than all threads of a GPU at
// once.
constexpr std::size_t kSizes[] = {1, 3, 16, 64, 1001, 1'200'007};

// Numbers that sum up exactly, so that the order does not matter: small whole ones.
template <class T>
void expect_sums(std::size_t addends, std::size_t count, std::size_t offset) {
  SCOPED_TRACE(text(addends, " × ", dtype_of<T>, "[", count, "], ", offset, " off"));
  std::size_t const rows = addends + 1;
  std::size_t const pitch = count + offset + 16 - (count + offset) % 16;
  Tensor const memory = zeros(Shape{rows * pitch}, dtype_of<T>, test_device(0));
  auto const row = [&](std::size_t index) { return slice(memory.view(), index * pitch + offset, count); };
  auto const stream = make_comm_stream(test_device(0));
  std::mt19937 random(static_cast<unsigned>(count));
  std::vector<int> expected(count);
  std::vector<T> elements(count);
  std::vector<void const*> from;
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t i = 0; i < count; ++i) {
      int const number = static_cast<int>(random() % 8);
      elements[i] = T(static_cast<float>(number));
      expected[i] += number;
    }
    copy_elements(row(r), view_of(std::span(elements)), *stream);
    stream->synchronize();
    if (r > 0) from.push_back(row(r).data);
  }
  add_elements(row(0).data, from, count, dtype_of<T>, *stream);
  auto const found = elements_of<T>(row(0), *stream);
  for (std::size_t i = 0; i < count; ++i)
    ASSERT_EQ(static_cast<float>(found[i]), static_cast<float>(expected[i])) << "element " << i;
  auto const last = elements_of<T>(row(addends), *stream);
  EXPECT_EQ(static_cast<float>(last[count - 1]), static_cast<float>(elements[count - 1]))
      << "what is added stays";
}

TEST(AddElements, P8SumsOfEachTypeAndSizeAndAlignment) {
  for (std::size_t d = 0; d < kDTypeCount; ++d) {
    dispatch(static_cast<DType>(d), []<class T>(T) {
      if constexpr (is_reducible(dtype_of<T>)) {
        for (std::size_t const count : kSizes) {
          for (std::size_t const offset : {0, 1, 3}) expect_sums<T>(3, count, offset);
        }
      }
    });
  }
}

TEST(AddElements, P8AnyNumberOfAddends) {
  for (std::size_t const addends : {1, 2, 7, 8, 9, 17}) {
    expect_sums<float>(addends, 1001, 0);
    expect_sums<bfloat16>(addends, 1001, 0);
  }
}

TEST(AddElements, P8SixteenBitFloatsAreRoundedOnce) {
  // 1 + 2⁻⁸ + 2⁻⁸ is 1 in bf16 if rounded after each, 1 + 2⁻⁷ if once.
  auto const stream = make_compute_stream(test_device(0));
  Tensor const sum = tensor_on<bfloat16>(test_device(0), {1}, {bfloat16(1.0F)});
  Tensor const small = tensor_on<bfloat16>(test_device(0), {1}, {bfloat16(1.0F / 256)});
  std::vector<void const*> const from(2, small.view().data);
  add_elements(sum.view().data, from, 1, DType::bf16, *stream);
  EXPECT_EQ(static_cast<float>(elements_of<bfloat16>(sum.view(), *stream).front()), 1.0F + 1.0F / 128);
}

TEST(AddElements, NothingToAddAndNoElementsAreFine) {
  auto const stream = make_compute_stream(test_device(0));
  Tensor const sum = tensor_on<float>(test_device(0), {2}, {1.0F, 2.0F});
  void const* const self = sum.view().data;
  add_elements(sum.view().data, {}, 2, DType::f32, *stream);
  add_elements(sum.view().data, {&self, 1}, 0, DType::f32, *stream);
  EXPECT_THAT(elements_of<float>(sum.view(), *stream), ElementsAre(1.0F, 2.0F));
}

}  // namespace
}  // namespace ddp::testing
