// Tensors of several dtypes for tests of checkpoints, with values that tell where they belong.
#pragma once

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "ddp/checkpoint/checkpoint.hpp"

namespace ddp::testing {

struct CheckpointModel {
  /// Values depend on `seed`; the rank's own also on `rank`.
  explicit CheckpointModel(int seed = 0, int rank = 0) { fill(seed, rank); }
  CheckpointModel(CheckpointModel const&) = delete;
  CheckpointModel& operator=(CheckpointModel const&) = delete;

  void fill(int seed, int rank) {
    std::iota(weight.begin(), weight.end(), static_cast<float>(100 * seed));
    std::iota(bias.begin(), bias.end(), static_cast<double>(7 * seed));
    std::iota(bytes.begin(), bytes.end(), static_cast<std::uint8_t>(seed));
    std::iota(moments.begin(), moments.end(), static_cast<float>(seed) / 2);
    std::iota(random.begin(), random.end(), std::int64_t{1000} * seed + rank);
  }

  /// From here on this is the model of one of `ranks`, each of which has a part of the moments.
  void divide(int rank, int ranks) {
    std::size_t const all = moments.size();
    begin = all * static_cast<std::size_t>(rank) / static_cast<std::size_t>(ranks);
    end = all * (static_cast<std::size_t>(rank) + 1) / static_cast<std::size_t>(ranks);
    divided = true;
  }

  [[nodiscard]] CheckpointTensors tensors() {
    CheckpointTensors all = whole_tensors();
    if (!divided) return all;
    NamedTensor const mean = all.optimizer.front();
    all.optimizer.clear();
    all.sharded_optimizer = {{mean.name,
                              mean.value.shape,
                              mean.value.dtype,
                              {{begin, view_of(std::span(moments).subspan(begin, end - begin))}}}};
    return all;
  }

  [[nodiscard]] CheckpointTensors whole_tensors() {
    return {{{"bytes", view_of(std::span(bytes))},
             {"weight", {weight.data(), Shape{4, 5}, DType::f32, {}}},
             {"bias", view_of(std::span(bias))},
             {"nothing", {nullptr, Shape{0, 3}, DType::f32, {}}}},
            {{"weight.mean", view_of(std::span(moments))}},
            {{"random", view_of(std::span(random))}}};
  }

  /// Whether the values are those of `seed`, of the moments those of this rank's part. The rank's own are not
  /// looked at.
  [[nodiscard]] bool holds(int seed) const {
    CheckpointModel const other(seed);
    auto const part = [&](CheckpointModel const& model) {
      return std::vector<float>(model.moments.data() + begin, model.moments.data() + end);
    };
    return weight == other.weight && bias == other.bias && bytes == other.bytes && part(*this) == part(other);
  }

  std::vector<float> weight = std::vector<float>(20);
  std::vector<double> bias = std::vector<double>(3);
  std::vector<std::uint8_t> bytes = std::vector<std::uint8_t>(5);
  std::vector<float> moments = std::vector<float>(20);
  std::vector<std::int64_t> random = std::vector<std::int64_t>(4);
  bool divided = false;
  std::size_t begin = 0;  // of this rank's part of the moments
  std::size_t end = 20;
};

}  // namespace ddp::testing
