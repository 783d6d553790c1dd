// The command line of ddp-bench.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "ddp/core/device.hpp"
#include "ddp/core/dtype.hpp"
#include "ddp/core/ids.hpp"

namespace ddp::bench {

struct AllReduceOptions {
  Bytes min = 1_KiB;
  std::optional<Bytes> max{};  ///< none: 256 MiB on CPUs, 1 GiB on GPUs
  std::size_t factor = 4;      ///< from one size to the next
  std::size_t rounds = 11;
  std::string json;  ///< a file to write; empty for none
};

struct ReducerBenchOptions {
  std::vector<std::size_t> parameters{100, 1'000, 10'000};
  std::vector<std::size_t> elements{64, 4096};  ///< of each parameter, f32
  std::size_t steps = 201;
  std::string json;
};

struct OverlapOptions {
  std::size_t layers = 24;
  std::optional<std::size_t> width{};  ///< none: 4096 on GPUs, 256 on CPUs
  std::optional<std::size_t> rows{};   ///< none: so many that the backward pass takes as long as its messages
  DType dtype = DType::f32;
  std::optional<Bytes> bucket{};  ///< none: the runtime's 25 MiB, or a layer's gradient if that is smaller
  int comm_sms = 16;              ///< WorldOptions::comm_sms
  std::size_t rounds = 11;
  std::string json{};
  std::string trace{};  ///< a folder
};

struct CheckpointBenchOptions {
  Bytes size = 1_GiB;
  std::string folder = ".";
  std::size_t rounds = 7;
  std::string json{};
};

/// A step of a whole model, through DataParallel or, under a launcher, DistributedDataParallel.
struct DataParallelBenchOptions {
  std::size_t layers = 12;             ///< linear, each with a ReLU
  std::optional<std::size_t> width{};  ///< none: 3072 on GPUs, 64 on CPUs
  std::optional<std::size_t> rows{};   ///< of each device; none: 8192 on GPUs, 16 on CPUs
  std::optional<std::size_t>
      cpus{};             ///< virtual CPU devices instead of GPUs; none: GPUs, or 2 where there is none
  std::size_t steps = 5;  ///< of one measurement
  std::size_t rounds = 11;
  std::string json{};
};

struct MergeTracesOptions {
  std::string folder;  ///< with rank0.json, rank1.json …
  std::string output;
};

/// A text to print and nothing to measure.
struct Help {
  std::string text;
};

using Options = std::variant<Help, AllReduceOptions, ReducerBenchOptions, OverlapOptions,
                             CheckpointBenchOptions, DataParallelBenchOptions, MergeTracesOptions>;

/// Throws Error(invalid_argument) for what cannot be measured: exit status 64.
[[nodiscard]] Options parse_options(std::vector<std::string> const& arguments);

/// min, min·factor … up to and including max (that of `kind` if none is given), whether or not a step falls
/// on it.
[[nodiscard]] std::vector<Bytes> sweep(AllReduceOptions const& options, DeviceKind kind);

}  // namespace ddp::bench
