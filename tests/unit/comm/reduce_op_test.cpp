#include "ddp/comm/reduce_op.hpp"

#include <gtest/gtest.h>

#include <utility>

namespace ddp {
namespace {

template <class Factor>
constexpr bool kIsAFactor = requires(Factor&& factor) {
  ReduceOp::scaled_sum(std::forward<Factor>(factor));
};

TEST(ReduceOp, AFactorThatIsATemporaryDoesNotCompile) {
  EXPECT_TRUE(kIsAFactor<double&>);
  EXPECT_TRUE(kIsAFactor<double const&>);
  EXPECT_FALSE(kIsAFactor<double>);
  EXPECT_FALSE(kIsAFactor<double const>);
  EXPECT_FALSE(kIsAFactor<float&>) << "a temporary double would be made of it";
  EXPECT_FALSE(kIsAFactor<int>);
}

}  // namespace
}  // namespace ddp
