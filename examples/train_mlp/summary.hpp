// What train_mlp and data_parallel have in common around a training: its data, its scores, its weights
// condensed.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

#include "data/image_set.hpp"
#include "nn/softmax_cross_entropy.hpp"
#include "nn/weight.hpp"
#include "train_mlp/options.hpp"
#include "train_mlp/run_log.hpp"

namespace train_mlp {

/// Why a training cannot start.
struct Problem {
  int exit_code = 0;
  std::string message;
  friend bool operator==(Problem const&, Problem const&) = default;
};

/// Loss and rate are shown once in so many steps: that makes the host wait. By number of steps and not by
/// time, since every rank must take part.
inline constexpr std::size_t kStepsPerReport = 20;
inline constexpr std::size_t kEvaluationBatch = 500;

/// Since it was made.
class Stopwatch {
 public:
  [[nodiscard]] double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// Along a cosine, from that of the options down to 0.
[[nodiscard]] double learning_rate_after(std::size_t steps_done, double all_steps, Options const& options);

/// Reads or makes what the options name. Throws data::InputError.
[[nodiscard]] data::DataSet load(Options const& options);
/// With what to do.
[[nodiscard]] Problem describe(data::InputError const& error, Options const& options);

void add(nn::Score& total, nn::Score const& score);
[[nodiscard]] double mean_loss(nn::Score const& score);
[[nodiscard]] double accuracy(nn::Score const& score);

/// Of the input, the hidden layers, and the number of classes.
[[nodiscard]] std::vector<std::size_t> widths(data::DataSet const& set, Options const& options);

/// f32 weights, as they are now. The host waits.
[[nodiscard]] std::vector<ParameterRecord> condense(std::vector<nn::Weight*> const& weights);

}  // namespace train_mlp
