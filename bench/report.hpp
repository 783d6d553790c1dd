// How results leave ddp-bench: a table for people, JSON for programs.
#pragma once

#include <algorithm>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "circumstances.hpp"
#include "ddp/core/dtype.hpp"
#include "ddp/core/ids.hpp"

namespace ddp::bench {

struct AllReduceRow {
  Bytes bytes;
  double us = 0;                             ///< of one all-reduce: median over rounds, of the slowest rank
  std::optional<double> raw_us{};            ///< the same by the plain library, where there is one
  std::optional<double> in_rank_order_us{};  ///< on GPUs: as with Options::deterministic
  std::optional<double> memcpy_us{};         ///< CPU ranks: the floor, see all_reduce_bench.hpp
  /// GPU ranks, short messages: what the host pays for one.
  std::optional<double> host_us{};
  std::optional<double> raw_host_us{};
  [[nodiscard]] std::optional<double> ratio() const { return quotient(us, raw_us); }
  [[nodiscard]] std::optional<double> memcpy_ratio() const { return quotient(us, memcpy_us); }
  /// bytes / time, and that times 2(n-1)/n: what each rank's link must carry at least, whatever the
  /// algorithm.
  [[nodiscard]] double algorithm_gb_s() const { return static_cast<double>(bytes.value) / us / 1e3; }
  [[nodiscard]] double bus_gb_s(int ranks) const { return algorithm_gb_s() * 2 * (ranks - 1) / ranks; }

 private:
  static std::optional<double> quotient(double time, std::optional<double> other) {
    return other ? std::optional(time / *other) : std::nullopt;
  }
};

struct ReducerRow {
  std::size_t parameters = 0;
  std::size_t elements = 0;      ///< of each
  std::size_t buckets = 0;       ///< in steady state
  double gradient_ready_ns = 0;  ///< host time of one call: median over steps of the mean over parameters
  double synchronize_us = 0;     ///< host time of one call: median over steps
};

/// A backward pass with its communication, medians over rounds, of the slowest rank each. See
/// overlap_bench.hpp.
struct OverlapResult {
  std::size_t layers = 0;
  std::size_t width = 0;
  std::size_t rows = 0;
  DType dtype = DType::f32;
  Bytes gradients{};
  std::size_t buckets = 0;
  int comm_sms = 0;             ///< of the GPU, set aside for messages
  int compute_sms = 0;          ///< and those that overlapped products have
  double compute_ms = 0;        ///< the backward pass alone
  double communication_ms = 0;  ///< its messages alone
  double overlapped_ms = 0;     ///< a step
  double one_by_one_ms = 0;     ///< a step that sends nothing before the backward pass is through
  [[nodiscard]] double longer_ms() const { return std::max(compute_ms, communication_ms); }
  [[nodiscard]] double sum_ms() const { return compute_ms + communication_ms; }
};

/// One checkpoint beside a plain write of the same bytes, medians over rounds. See checkpoint_bench.hpp.
struct CheckpointRow {
  Bytes bytes{};
  double plain_s = 0;
  double checkpoint_s = 0;
  double stall_ms = 0;
  double copy_ms = 0;
  [[nodiscard]] double plain_mb_s() const { return static_cast<double>(bytes.value) / plain_s / 1e6; }
  [[nodiscard]] double checkpoint_mb_s() const {
    return static_cast<double>(bytes.value) / checkpoint_s / 1e6;
  }
};

/// Training steps of one model, medians over rounds. See data_parallel_bench.hpp.
struct DataParallelRow {
  std::string path{};  ///< "DataParallel" or "DistributedDataParallel"
  std::size_t devices = 0;
  std::size_t layers = 0;
  std::size_t width = 0;
  std::size_t rows = 0;  ///< of each device
  Bytes parameters{};
  double step_ms = 0;
  std::optional<double> refresh_ms{};    ///< DataParallel of several devices: values to every replica
  std::optional<double> broadcast_ms{};  ///< one broadcast of the same bytes, by turns with it
  [[nodiscard]] double samples_per_second() const {
    return static_cast<double>(devices * rows) / step_ms * 1e3;
  }
};

void print_header(std::ostream& out, std::string const& command, Circumstances const& circumstances);
void print_all_reduce_columns(std::ostream& out);
void print(std::ostream& out, AllReduceRow const& row, int ranks);
/// How far all rows together are from the plain library; nothing where there is none.
void print_comparison(std::ostream& out, std::vector<AllReduceRow> const& rows);
/// The clocks, if they are known.
void print_clocks(std::ostream& out, Circumstances const& circumstances);
void print_reducer_columns(std::ostream& out);
void print(std::ostream& out, ReducerRow const& row);

void print(std::ostream& out, OverlapResult const& result, int ranks);

[[nodiscard]] std::string to_json(Circumstances const& circumstances, std::vector<AllReduceRow> const& rows);
[[nodiscard]] std::string to_json(Circumstances const& circumstances, std::vector<ReducerRow> const& rows);
[[nodiscard]] std::string to_json(Circumstances const& circumstances, OverlapResult const& result);
void print(std::ostream& out, CheckpointRow const& row);
[[nodiscard]] std::string to_json(Circumstances const& circumstances, CheckpointRow const& row);

void print(std::ostream& out, DataParallelRow const& row);
[[nodiscard]] std::string to_json(Circumstances const& circumstances, DataParallelRow const& row);

/// Creates (or empties) the file, so that one that cannot be written is known before minutes of measuring.
/// Throws Error(io).
void check_writable(std::string const& file);
/// Throws Error(io).
void write_file(std::string const& file, std::string const& content);

}  // namespace ddp::bench
