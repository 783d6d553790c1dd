#include "report.hpp"

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <ostream>

#include "ddp/core/error.hpp"
#include "ddp/core/text.hpp"

namespace ddp::bench {
namespace {

using Json = nlohmann::ordered_json;

Json start(Circumstances const& circumstances) {
  Json report{{"backend", circumstances.backend},
              {"ranks", circumstances.ranks},
              {"hardware", circumstances.hardware},
              {"date", circumstances.date}};
  if (!circumstances.gpu.empty()) report["gpu"] = circumstances.gpu;
  if (!circumstances.gpu_clocks.empty()) report["gpu_clocks"] = circumstances.gpu_clocks;
  report["rows"] = Json::array();
  return report;
}

Json number_or_null(std::optional<double> number) { return number ? Json(*number) : Json(nullptr); }

std::string fixed(double number, int digits) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(digits) << number;
  return std::move(out).str();
}

std::string or_dash(std::optional<double> number, int digits) {
  return number ? fixed(*number, digits) : "-";
}

}  // namespace

void print_header(std::ostream& out, std::string const& command, Circumstances const& circumstances) {
  out << "ddp-bench " << command << ", ddp " DDP_BENCH_VERSION ": backend " << circumstances.backend << ", "
      << circumstances.ranks << (circumstances.ranks == 1 ? " rank, " : " ranks, ") << circumstances.hardware
      << ", " << circumstances.date << '\n';
  if (!circumstances.gpu.empty()) out << circumstances.gpu << '\n';
}

void print_all_reduce_columns(std::ostream& out) {
  out << std::setw(10) << "size" << std::setw(12) << "us" << std::setw(10) << "alg GB/s" << std::setw(10)
      << "bus GB/s" << std::setw(12) << "memcpy us" << std::setw(10) << "x memcpy" << std::setw(12)
      << "ordered us" << std::setw(12) << "raw us" << std::setw(8) << "x raw" << std::setw(10) << "host us"
      << std::setw(10) << "raw host" << std::endl;
}

void print(std::ostream& out, AllReduceRow const& row, int ranks) {
  out << std::setw(10) << to_string(row.bytes) << std::setw(12) << fixed(row.us, 2) << std::setw(10)
      << fixed(row.algorithm_gb_s(), 2) << std::setw(10) << fixed(row.bus_gb_s(ranks), 2) << std::setw(12)
      << or_dash(row.memcpy_us, 2) << std::setw(10) << or_dash(row.memcpy_ratio(), 2) << std::setw(12)
      << or_dash(row.in_rank_order_us, 2) << std::setw(12) << or_dash(row.raw_us, 2) << std::setw(8)
      << or_dash(row.ratio(), 3) << std::setw(10) << or_dash(row.host_us, 2) << std::setw(10)
      << or_dash(row.raw_host_us, 2) << std::endl;
}

void print_comparison(std::ostream& out, std::vector<AllReduceRow> const& rows) {
  constexpr Bytes kLarge = 64_MiB;
  constexpr Bytes kSmall = 64_KiB;
  std::optional<double> slowest;
  std::optional<double> slowest_large;
  std::optional<double> added;
  std::optional<double> added_host;
  auto const keep_largest = [](std::optional<double>& largest, double value) {
    largest = largest ? std::max(*largest, value) : value;
  };
  for (AllReduceRow const& row : rows) {
    if (!row.raw_us) continue;
    keep_largest(slowest, *row.ratio());
    if (row.bytes >= kLarge) keep_largest(slowest_large, *row.ratio());
    if (row.bytes <= kSmall) keep_largest(added, row.us - *row.raw_us);
    if (row.bytes <= kSmall && row.host_us && row.raw_host_us) {
      keep_largest(added_host, *row.host_us - *row.raw_host_us);
    }
  }
  if (!slowest) return;
  out << "of the plain library's bandwidth at least " << fixed(1 / *slowest, 3);
  if (slowest_large) out << ", from 64 MiB " << fixed(1 / *slowest_large, 3);
  if (added) out << "; up to 64 KiB at most " << fixed(*added, 2) << " us added";
  if (added_host) out << ", " << fixed(*added_host, 2) << " us of the host's time";
  out << '\n';
}

void print_clocks(std::ostream& out, Circumstances const& circumstances) {
  if (circumstances.gpu_clocks.empty()) return;
  out << "clocks of SM and memory, power, after the last measurement: " << circumstances.gpu_clocks << '\n';
}

void print_reducer_columns(std::ostream& out) {
  out << std::setw(12) << "parameters" << std::setw(10) << "elements" << std::setw(10) << "buckets"
      << std::setw(20) << "gradient_ready ns" << std::setw(16) << "synchronize us" << std::endl;
}

void print(std::ostream& out, ReducerRow const& row) {
  out << std::setw(12) << row.parameters << std::setw(10) << row.elements << std::setw(10) << row.buckets
      << std::setw(20) << fixed(row.gradient_ready_ns, 1) << std::setw(16) << fixed(row.synchronize_us, 2)
      << std::endl;
}

std::string to_json(Circumstances const& circumstances, std::vector<AllReduceRow> const& rows) {
  Json report = start(circumstances);
  for (AllReduceRow const& row : rows) {
    report["rows"].push_back({{"bytes", row.bytes.value},
                              {"us", row.us},
                              {"raw_us", number_or_null(row.raw_us)},
                              {"in_rank_order_us", number_or_null(row.in_rank_order_us)},
                              {"ratio", number_or_null(row.ratio())},
                              {"host_us", number_or_null(row.host_us)},
                              {"raw_host_us", number_or_null(row.raw_host_us)},
                              {"memcpy_us", number_or_null(row.memcpy_us)},
                              {"memcpy_ratio", number_or_null(row.memcpy_ratio())},
                              {"bus_gb_s", row.bus_gb_s(circumstances.ranks)}});
  }
  return report.dump(2) + '\n';
}

std::string to_json(Circumstances const& circumstances, std::vector<ReducerRow> const& rows) {
  Json report = start(circumstances);
  for (ReducerRow const& row : rows) {
    report["rows"].push_back({{"parameters", row.parameters},
                              {"elements", row.elements},
                              {"buckets", row.buckets},
                              {"gradient_ready_ns", row.gradient_ready_ns},
                              {"synchronize_us", row.synchronize_us}});
  }
  return report.dump(2) + '\n';
}

void print(std::ostream& out, OverlapResult const& result, int ranks) {
  auto const line = [&out](char const* what, double ms) -> std::ostream& {
    return out << std::left << std::setw(26) << what << std::right << std::setw(10) << fixed(ms, 3) << " ms";
  };
  out << result.layers << " layers of " << result.width << " x " << result.width << ' ' << result.dtype
      << ", " << result.rows << " rows; " << to_string(result.gradients) << " of gradients in "
      << result.buckets << " buckets\n";
  if (result.comm_sms > 0) {
    out << "multiprocessors of a GPU: " << result.comm_sms << " set aside for messages, "
        << result.compute_sms << " for overlapped products\n";
  }
  line("backward alone", result.compute_ms) << '\n';
  line("communication alone", result.communication_ms)
      << (ranks == 1 ? "   (one rank: nothing to send)\n" : "\n");
  line("step, overlapped", result.overlapped_ms)
      << "   " << fixed(result.overlapped_ms / result.longer_ms(), 3) << " x the longer of the two\n";
  line("step, one by one", result.one_by_one_ms)
      << "   " << fixed(result.one_by_one_ms / result.sum_ms(), 3) << " x their sum\n"
      << std::flush;
}

std::string to_json(Circumstances const& circumstances, OverlapResult const& result) {
  Json report = start(circumstances);
  report["rows"].push_back({{"layers", result.layers},
                            {"width", result.width},
                            {"rows", result.rows},
                            {"dtype", std::string(to_string(result.dtype))},
                            {"gradient_bytes", result.gradients.value},
                            {"buckets", result.buckets},
                            {"comm_sms", result.comm_sms},
                            {"compute_sms", result.compute_sms},
                            {"compute_ms", result.compute_ms},
                            {"communication_ms", result.communication_ms},
                            {"overlapped_ms", result.overlapped_ms},
                            {"one_by_one_ms", result.one_by_one_ms},
                            {"overlapped_over_longer", result.overlapped_ms / result.longer_ms()},
                            {"one_by_one_over_sum", result.one_by_one_ms / result.sum_ms()}});
  return report.dump(2) + '\n';
}

void print(std::ostream& out, CheckpointRow const& row) {
  out << to_string(row.bytes) << ": plain write with fsync " << fixed(row.plain_s, 3) << " s, "
      << fixed(row.plain_mb_s(), 0) << " MB/s\n"
      << "checkpoint " << fixed(row.checkpoint_s, 3) << " s, " << fixed(row.checkpoint_mb_s(), 0) << " MB/s, "
      << fixed(row.plain_s / row.checkpoint_s, 2) << " x the plain rate\n"
      << "training waits " << fixed(row.stall_ms, 1) << " ms, " << fixed(row.stall_ms / row.copy_ms, 2)
      << " x a copy to host memory (" << fixed(row.copy_ms, 1) << " ms)\n";
}

std::string to_json(Circumstances const& circumstances, CheckpointRow const& row) {
  Json report = start(circumstances);
  report["rows"].push_back({{"bytes", row.bytes.value},
                            {"plain_s", row.plain_s},
                            {"checkpoint_s", row.checkpoint_s},
                            {"rate_over_plain", row.plain_s / row.checkpoint_s},
                            {"stall_ms", row.stall_ms},
                            {"copy_ms", row.copy_ms},
                            {"stall_over_copy", row.stall_ms / row.copy_ms}});
  return report.dump(2) + '\n';
}

void print(std::ostream& out, DataParallelRow const& row) {
  out << row.path << ", " << row.devices << (row.devices == 1 ? " device, " : " devices, ") << row.layers
      << " layers of " << row.width << " x " << row.width << ", " << row.rows << " rows each, "
      << to_string(row.parameters) << " of parameters: " << fixed(row.step_ms, 2) << " ms a step, "
      << fixed(row.samples_per_second(), 0) << " samples/s\n";
  if (row.refresh_ms && row.broadcast_ms) {
    out << "refreshing replicas " << fixed(*row.refresh_ms, 3) << " ms, "
        << fixed(*row.refresh_ms / *row.broadcast_ms, 2) << " x one broadcast of the same bytes ("
        << fixed(*row.broadcast_ms, 3) << " ms)\n";
  }
}

std::string to_json(Circumstances const& circumstances, DataParallelRow const& row) {
  Json report = start(circumstances);
  Json one{{"path", row.path},
           {"devices", row.devices},
           {"layers", row.layers},
           {"width", row.width},
           {"rows_per_device", row.rows},
           {"parameter_bytes", row.parameters.value},
           {"step_ms", row.step_ms},
           {"samples_per_second", row.samples_per_second()}};
  if (row.refresh_ms && row.broadcast_ms) {
    one["refresh_ms"] = *row.refresh_ms;
    one["broadcast_ms"] = *row.broadcast_ms;
    one["refresh_over_broadcast"] = *row.refresh_ms / *row.broadcast_ms;
  }
  report["rows"].push_back(one);
  return report.dump(2) + '\n';
}

void check_writable(std::string const& file) { write_file(file, ""); }

void write_file(std::string const& file, std::string const& content) {
  std::ofstream out(file, std::ios::binary | std::ios::trunc);
  out << content << std::flush;
  if (!out) throw_errno(text("writing the results to ", file), errno);
}

}  // namespace ddp::bench
