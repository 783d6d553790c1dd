// What comes out when ranks add as NCCL does, rounding to the element type at each of them.
#include "comm/nccl/average.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <vector>

#include "comm/kernels/cuda_kernels.hpp"
#include "ddp/core/text.hpp"
#include "support/contract/average_accuracy.hpp"

namespace {

// The factors of what was made, by the type.
struct Made {
  ncclDataType_t type;
  std::uint16_t scalar;
};
std::map<int, Made>& made() {
  static std::map<int, Made> all;
  return all;
}

}  // namespace

extern "C" ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t datatype,
                                                 ncclScalarResidence_t residence, ncclComm_t /*comm*/) {
  EXPECT_EQ(residence, ncclScalarHostImmediate) << "it is read when it is made, so a local is enough";
  Made one{datatype, 0};
  std::memcpy(&one.scalar, scalar, sizeof(one.scalar));
  int const number = static_cast<int>(ncclNumOps) + static_cast<int>(made().size());
  made()[number] = one;
  *op = static_cast<ncclRedOp_t>(number);
  return ncclSuccess;
}

namespace ddp::cuda {

// In float, rounded once, as the kernel does.
void multiply_elements(void* data, std::size_t count, DType dtype, double by, Stream& /*stream*/) {
  dispatch(dtype, [&]<class T>(T) {
    if constexpr (sizeof(T) == 2) {
      for (T& element : std::span(static_cast<T*>(data), count)) {
        element = T(static_cast<float>(element) * static_cast<float>(by));
      }
    }
  });
}

void load_multiply_elements(DType /*dtype*/) {}

}  // namespace ddp::cuda

namespace ddp::testing {
namespace {

// What NCCL multiplies each element with first.
template <class T>
float first_factor(ncclRedOp_t reduction, int ranks) {
  if (reduction == ncclSum) return 1;
  if (reduction == ncclAvg) return static_cast<float>(T(static_cast<float>(1.0 / ranks)));
  Made const& one = made().at(static_cast<int>(reduction));
  EXPECT_EQ(one.type, (std::is_same_v<T, float16> ? ncclFloat16 : ncclBfloat16));
  T scalar;
  scalar.bits = one.scalar;
  return static_cast<float>(scalar);
}

template <class T>
std::vector<T> average_as_nccl_does(std::vector<std::vector<T>> const& ranks) {
  int const size = static_cast<int>(ranks.size());
  NcclAverage const average(ranks.size(), nullptr);
  float const factor = first_factor<T>(average.reduction(dtype_of<T>), size);
  auto const times = [&](T value) { return static_cast<float>(T(static_cast<float>(value) * factor)); };
  std::vector<T> sum(ranks[0].size());
  for (std::size_t i = 0; i < sum.size(); ++i) {
    sum[i] = T(times(ranks[0][i]));
    for (std::size_t r = 1; r < ranks.size(); ++r)
      sum[i] = T(static_cast<float>(sum[i]) + times(ranks[r][i]));
  }
  average.finish(sum.data(), sum.size(), dtype_of<T>, *HostStream::inline_stream());
  return sum;
}

template <class T>
class NcclAverageOf : public ::testing::Test {};
using SixteenBits = ::testing::Types<float16, bfloat16>;
TYPED_TEST_SUITE(NcclAverageOf, SixteenBits);

TYPED_TEST(NcclAverageOf, AnyNumberOfRanksHasNoBias) {
  for (int size = 1; size <= 17; ++size) {
    std::vector<std::vector<TypeParam>> ranks(static_cast<std::size_t>(size));
    for (int r = 0; r < size; ++r) {
      for (std::size_t i = 0; i < kAveraged; ++i) {
        ranks[static_cast<std::size_t>(r)].push_back(average_sample<TypeParam>(r, i));
      }
    }
    auto const found = average_as_nccl_does(ranks);
    expect_averages<TypeParam>(found, size, size, size + 1, text(dtype_of<TypeParam>, " over ", size));
  }
}

TYPED_TEST(NcclAverageOf, TheSumOverflowsNotWhereTheAverageDoesNot) {
  auto const most = std::is_same_v<TypeParam, float16> ? TypeParam(65504.0F * 0.99F) : TypeParam(3.3e38F);
  for (int size = 1; size <= 17; ++size) {
    std::vector<std::vector<TypeParam>> const ranks(static_cast<std::size_t>(size), {most});
    double const found = as_double(average_as_nccl_does(ranks)[0]);
    EXPECT_NEAR(found / as_double(most), 1, 0.05) << size;
  }
}

// Those are as fast as before: NCCL does all of it.
TEST(NcclAverage, PowersOfTwoAndWideTypesAreLeftToNccl) {
  for (std::size_t const size : {2U, 4U, 8U, 64U}) {
    NcclAverage const average(size, nullptr);
    for (DType const dtype : {DType::f16, DType::bf16}) EXPECT_EQ(average.reduction(dtype), ncclAvg);
  }
  for (DType const dtype : {DType::f32, DType::f64}) {
    EXPECT_EQ(NcclAverage(3, nullptr).reduction(dtype), ncclAvg);
  }
  EXPECT_EQ(NcclAverage(1, nullptr).reduction(DType::bf16), ncclSum);
}

}  // namespace
}  // namespace ddp::testing
