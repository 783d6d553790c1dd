#include <gtest/gtest.h>

#include <cmath>
#include <tuple>
#include <vector>

#include "nn/gemm_cpu.hpp"
#include "nn/random.hpp"

namespace nn::cpu {
namespace {

template <class T>
std::vector<T> random_values(std::size_t count, std::uint64_t stream) {
  Random const random(7, stream);
  std::vector<T> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<T>(random.uniform(i, -1, 1));
  return values;
}

struct Problem {
  std::size_t m, n, k;
  bool a_transposed, b_transposed;
  Into into;
  Vectors vectors = widest_vectors();
};

// The largest difference from the sum written down, and that every element outside c's columns is untouched.
template <class T>
double worst_error(Problem const& p) {
  auto const a_values = random_values<T>(p.m * p.k, 1);
  auto const b_values = random_values<T>(p.k * p.n, 2);
  std::size_t const gap = 3;  // c is a part of a wider matrix
  auto const before = random_values<T>(p.m * (p.n + gap), 3);
  auto after = before;
  auto const a = p.a_transposed ? row_major(a_values.data(), p.k, p.m).transposed()
                                : row_major(a_values.data(), p.m, p.k);
  auto const b = p.b_transposed ? row_major(b_values.data(), p.n, p.k).transposed()
                                : row_major(b_values.data(), p.k, p.n);
  gemm<T>(a, b, {after.data(), p.m, p.n, p.n + gap, 1}, p.into, p.vectors);
  double worst = 0;
  for (std::size_t i = 0; i < p.m; ++i) {
    for (std::size_t j = 0; j < p.n + gap; ++j) {
      std::size_t const at = i * (p.n + gap) + j;
      double expected = j < p.n && p.into == Into::overwrite ? 0.0 : static_cast<double>(before[at]);
      for (std::size_t k = 0; j < p.n && k < p.k; ++k) {
        expected += static_cast<double>(a.data[i * a.row_stride + k * a.column_stride]) *
                    static_cast<double>(b.data[k * b.row_stride + j * b.column_stride]);
      }
      worst = std::max(worst, std::abs(expected - static_cast<double>(after[at])));
    }
  }
  return worst;
}

// Every kernel that this processor can run, not only the one that it would choose.
class GemmKernel : public testing::TestWithParam<Vectors> {
 protected:
  void SetUp() override {
    if (GetParam() > widest_vectors()) GTEST_SKIP() << "this processor has no registers of this width";
  }
};

TEST_P(GemmKernel, EqualsTheSumForEveryEdgeLayoutAndType) {
  for (std::size_t const m : {1U, 5U, 12U, 13U, 31U}) {
    for (std::size_t const n : {1U, 10U, 32U, 33U, 65U}) {
      for (std::size_t const k : {1U, 7U, 64U}) {
        for (bool const ta : {false, true}) {
          for (bool const tb : {false, true}) {
            for (Into const into : {Into::overwrite, Into::add}) {
              Problem const problem{m, n, k, ta, tb, into, GetParam()};
              EXPECT_LT(worst_error<double>(problem), 1e-13) << m << " " << n << " " << k << " " << ta << tb;
              EXPECT_LT(worst_error<float>(problem), 2e-5) << m << " " << n << " " << k << " " << ta << tb;
            }
          }
        }
      }
    }
  }
}

TEST_P(GemmKernel, AddsUpOverBlocksLargerThanTheCache) {
  for (Into const into : {Into::overwrite, Into::add}) {
    EXPECT_LT(worst_error<double>({17, 530, 600, false, true, into, GetParam()}), 1e-12);
    EXPECT_LT(worst_error<double>({17, 1030, 257, true, false, into, GetParam()}), 1e-12);
  }
}

INSTANTIATE_TEST_SUITE_P(Widths, GemmKernel,
                         testing::Values(Vectors::bits128, Vectors::bits256, Vectors::bits512));

TEST(Gemm, OfNothingIsZeroOrWhatWasThere) {
  EXPECT_EQ(worst_error<double>({3, 4, 0, false, false, Into::overwrite}), 0.0);
  EXPECT_EQ(worst_error<double>({3, 4, 0, false, false, Into::add}), 0.0);
  EXPECT_EQ(worst_error<double>({0, 4, 5, false, false, Into::add}), 0.0);
}

TEST(Gemm, ARowsResultDoesNotDependOnTheOtherRows) {
  auto const a = random_values<float>(40 * 300, 1);
  auto const b = random_values<float>(300 * 50, 2);
  std::vector<float> whole(40 * 50);
  std::vector<float> part(3 * 50);
  gemm<float>(row_major(a.data(), 40, 300), row_major(b.data(), 300, 50), row_major(whole.data(), 40, 50),
              Into::overwrite);
  gemm<float>(row_major(a.data() + 17 * 300, 3, 300), row_major(b.data(), 300, 50),
              row_major(part.data(), 3, 50), Into::overwrite);
  EXPECT_EQ(part, std::vector<float>(whole.begin() + 17 * 50, whole.begin() + 20 * 50));
}

}  // namespace
}  // namespace nn::cpu
