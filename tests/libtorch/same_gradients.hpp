// Gradients of two modules, by name.
#pragma once

#include <gmock/gmock.h>
#include <torch/torch.h>

namespace ddp::testing {

/// Both have gradients for the same parameters, and near(one, the other) says what else must hold.
template <class Near>
void expect_same_gradients(torch::nn::Module const& found, torch::nn::Module const& expected,
                           Near const& near) {
  auto const mine = found.named_parameters();
  auto const theirs = expected.named_parameters();
  ASSERT_EQ(mine.size(), theirs.size());
  for (auto const& parameter : mine) {
    SCOPED_TRACE(parameter.key());
    torch::Tensor const& other = theirs[parameter.key()].grad();
    ASSERT_EQ(parameter.value().grad().defined(), other.defined());
    if (other.defined()) near(parameter.value().grad(), other);
  }
}

}  // namespace ddp::testing
