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

  [[nodiscard]] CheckpointTensors tensors() {
    return {{{"bytes", view_of(std::span(bytes))},
             {"weight", {weight.data(), Shape{4, 5}, DType::f32, {}}},
             {"bias", view_of(std::span(bias))},
             {"nothing", {nullptr, Shape{0, 3}, DType::f32, {}}}},
            {{"weight.mean", view_of(std::span(moments))}},
            {{"random", view_of(std::span(random))}}};
  }

  /// Whether the values are those of `seed`; the rank's own are not looked at.
  [[nodiscard]] bool holds(int seed) const {
    CheckpointModel const other(seed);
    return weight == other.weight && bias == other.bias && bytes == other.bytes && moments == other.moments;
  }

  std::vector<float> weight = std::vector<float>(20);
  std::vector<double> bias = std::vector<double>(3);
  std::vector<std::uint8_t> bytes = std::vector<std::uint8_t>(5);
  std::vector<float> moments = std::vector<float>(20);
  std::vector<std::int64_t> random = std::vector<std::int64_t>(4);
};

}  // namespace ddp::testing
