// A "model" that is only parameters, with gradients whose averages over ranks are exact.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "ddp/parallel/distributed_data_parallel.hpp"

namespace ddp::testing {

struct ToyModel {
  explicit ToyModel(std::vector<std::size_t> const& counts, int rank = 0) {
    for (std::size_t const count : counts) {
      values.emplace_back(count);
      own.emplace_back(count);
      for (std::size_t i = 0; i < count; ++i) values.back()[i] = initial(rank, i);
    }
    for (auto& gradient : own) gradients.push_back(gradient.data());
    binds.assign(counts.size(), 0);
  }
  ToyModel(ToyModel const&) = delete;
  ToyModel& operator=(ToyModel const&) = delete;

  static float initial(int rank, std::size_t i) {
    return static_cast<float>(rank * 1000 + static_cast<int>(i % 100));
  }
  /// Multiples of 6: averages over 1, 2 and 3 ranks are whole.
  static float gradient(std::size_t parameter, std::size_t i, int rank) {
    return static_cast<float>(6 * (static_cast<int>(parameter) * 10 + static_cast<int>(i % 7) + rank * rank));
  }
  static float average_gradient(std::size_t parameter, std::size_t i, int ranks) {
    float sum = 0;
    for (int r = 0; r < ranks; ++r) sum += gradient(parameter, i, r);
    return sum / static_cast<float>(ranks);
  }

  /// Adds this rank's gradients.
  void fill_gradients(int rank) {
    for (std::size_t p = 0; p < values.size(); ++p) {
      for (std::size_t i = 0; i < values[p].size(); ++i) gradients[p][i] += gradient(p, i, rank);
    }
  }
  void clear_gradients() {
    for (std::size_t p = 0; p < values.size(); ++p) std::fill_n(gradients[p], values[p].size(), 0.0F);
  }

  [[nodiscard]] std::vector<Parameter> parameters() {
    std::vector<Parameter> list;
    for (std::size_t p = 0; p < values.size(); ++p) {
      auto bind = [this, p](TensorView const& view) {
        gradients[p] = view.as<float>().data();
        ++binds[p];
      };
      list.push_back(
          {"p" + std::to_string(p), view_of(std::span(values[p])), bind, view_of(std::span(own[p]))});
    }
    return list;
  }

  std::vector<std::vector<float>> values;
  std::vector<std::vector<float>> own;  ///< gradients with storage in_place and copy
  std::vector<float*> gradients;        ///< where the gradients are now
  std::vector<int> binds;
};

}  // namespace ddp::testing
