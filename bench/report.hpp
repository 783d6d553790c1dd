// How results leave ddp-bench: a table for people, JSON for programs.
#pragma once

#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "ddp/core/ids.hpp"

namespace ddp::bench {

/// What every report says of its circumstances.
struct Circumstances {
  std::string backend;  ///< Communicator::backend(), or "null"
  int ranks = 1;
  std::string hardware;  ///< "AMD EPYC, 2 CPUs at 2596 MHz"
  std::string date;      ///< UTC, "2026-11-20T14:30:00Z"
};

/// Of this process's host, now.
[[nodiscard]] Circumstances circumstances(std::string backend, int ranks);

struct AllReduceRow {
  Bytes bytes;
  double us = 0;                 ///< of one all-reduce: median over rounds, of the slowest rank
  std::optional<double> raw_us;  ///< the same by the plain library, where there is one
  double memcpy_us = 0;          ///< the floor: see all_reduce_bench.hpp
  [[nodiscard]] std::optional<double> ratio() const;
  [[nodiscard]] double memcpy_ratio() const { return us / memcpy_us; }
  /// bytes / time, and that times 2(n-1)/n: what each rank's link must carry at least, whatever the
  /// algorithm.
  [[nodiscard]] double algorithm_gb_s() const { return static_cast<double>(bytes.value) / us / 1e3; }
  [[nodiscard]] double bus_gb_s(int ranks) const { return algorithm_gb_s() * 2 * (ranks - 1) / ranks; }
};

struct ReducerRow {
  std::size_t parameters = 0;
  std::size_t elements = 0;      ///< of each
  std::size_t buckets = 0;       ///< in steady state
  double gradient_ready_ns = 0;  ///< host time of one call: median over steps of the mean over parameters
  double synchronize_us = 0;     ///< host time of one call: median over steps
};

void print_header(std::ostream& out, std::string const& command, Circumstances const& circumstances);
void print_all_reduce_columns(std::ostream& out);
void print(std::ostream& out, AllReduceRow const& row, int ranks);
void print_reducer_columns(std::ostream& out);
void print(std::ostream& out, ReducerRow const& row);

[[nodiscard]] std::string to_json(Circumstances const& circumstances, std::vector<AllReduceRow> const& rows);
[[nodiscard]] std::string to_json(Circumstances const& circumstances, std::vector<ReducerRow> const& rows);

/// Creates (or empties) the file, so that one that cannot be written is known before minutes of measuring.
/// Throws Error(io).
void check_writable(std::string const& file);
/// Throws Error(io).
void write_file(std::string const& file, std::string const& content);

}  // namespace ddp::bench
