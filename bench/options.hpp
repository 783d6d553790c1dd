// The command line of ddp-bench.
#pragma once

#include <cstddef>
#include <string>
#include <variant>
#include <vector>

#include "ddp/core/ids.hpp"

namespace ddp::bench {

struct AllReduceOptions {
  Bytes min = Bytes{std::size_t{1} << 10};
  Bytes max = Bytes{std::size_t{256} << 20};
  std::size_t factor = 4;  ///< from one size to the next
  std::size_t rounds = 11;
  std::string json;  ///< a file to write; empty for none
};

struct ReducerBenchOptions {
  std::vector<std::size_t> parameters{100, 1'000, 10'000};
  std::vector<std::size_t> elements{64, 4096};  ///< of each parameter, f32
  std::size_t steps = 201;
  std::string json;
};

struct MergeTracesOptions {
  std::string folder;  ///< with rank0.json, rank1.json …
  std::string output;
};

/// A text to print and nothing to measure.
struct Help {
  std::string text;
};

using Options = std::variant<Help, AllReduceOptions, ReducerBenchOptions, MergeTracesOptions>;

/// Throws Error(invalid_argument) for what cannot be measured: exit status 64.
[[nodiscard]] Options parse_options(std::vector<std::string> const& arguments);

/// min, min·factor … up to and including max, whether or not a step falls on it.
[[nodiscard]] std::vector<Bytes> sweep(AllReduceOptions const& options);

}  // namespace ddp::bench
