// ToyModel's gradients as an autograd library makes them: in a fresh tensor each.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "ddp/core/tensor.hpp"
#include "support/models/toy_model.hpp"

namespace ddp::testing {

/// A tensor with ToyModel's gradient, times `times`. `alive` counts those that somebody has.
[[nodiscard]] inline Tensor fresh(std::size_t p, std::size_t count, int rank, std::atomic<int>& alive,
                                  float times = 1) {
  ++alive;
  std::shared_ptr<std::vector<float>> elements(new std::vector<float>(count), [&alive](auto* gone) {
    delete gone;
    --alive;
  });
  for (std::size_t i = 0; i < count; ++i) (*elements)[i] = times * ToyModel::gradient(p, i, rank);
  TensorView const view = view_of(std::span(*elements));
  return {view, std::move(elements)};
}

/// After a step of gradients that were `times` as large.
inline void expect_averages(ToyModel const& model, int ranks, float times = 1) {
  for (std::size_t p = 0; p < model.values.size(); ++p) {
    for (std::size_t i = 0; i < model.values[p].size(); ++i) {
      ASSERT_EQ(model.gradients[p][i], times * ToyModel::average_gradient(p, i, ranks)) << p << " " << i;
    }
  }
}

/// All of one size.
[[nodiscard]] inline DistributedDataParallelOptions buckets_of(Bytes bytes) {
  DistributedDataParallelOptions options;
  options.bucket_bytes = options.first_bucket_bytes = bytes;
  return options;
}

}  // namespace ddp::testing
