#include "report.hpp"

#include <cerrno>
#include <ctime>
#include <fstream>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <ostream>
#include <thread>

#include "ddp/core/error.hpp"
#include "ddp/core/text.hpp"

namespace ddp::bench {
namespace {

using Json = nlohmann::ordered_json;

// The first value of `key` in /proc/cpuinfo, as Linux writes it: "key\t: value".
std::string cpu_info(std::string_view key) {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key)) continue;
    std::size_t const colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  return "";
}

std::string hardware() {
  std::string model = cpu_info("model name");
  if (model.empty()) model = "unknown processor";
  std::string clock = cpu_info("cpu MHz");
  if (!clock.empty()) clock = text(" at ", clock.substr(0, clock.find('.')), " MHz");
  return text(model, ", ", std::thread::hardware_concurrency(), " CPUs", clock);
}

std::string now() {
  std::time_t const seconds = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  std::array<char, 32> buffer{};
  std::size_t const length = std::strftime(buffer.data(), buffer.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return {buffer.data(), length};
}

Json start(Circumstances const& circumstances) {
  return {{"backend", circumstances.backend},
          {"ranks", circumstances.ranks},
          {"hardware", circumstances.hardware},
          {"date", circumstances.date},
          {"rows", Json::array()}};
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

Circumstances circumstances(std::string backend, int ranks) {
  return {std::move(backend), ranks, hardware(), now()};
}

std::optional<double> AllReduceRow::ratio() const {
  if (!raw_us) return std::nullopt;
  return us / *raw_us;
}

void print_header(std::ostream& out, std::string const& command, Circumstances const& circumstances) {
  out << "ddp-bench " << command << ", ddp " DDP_BENCH_VERSION ": backend " << circumstances.backend << ", "
      << circumstances.ranks << (circumstances.ranks == 1 ? " rank, " : " ranks, ") << circumstances.hardware
      << ", " << circumstances.date << '\n';
}

void print_all_reduce_columns(std::ostream& out) {
  out << std::setw(10) << "size" << std::setw(12) << "us" << std::setw(10) << "alg GB/s" << std::setw(10)
      << "bus GB/s" << std::setw(12) << "memcpy us" << std::setw(10) << "x memcpy" << std::setw(10)
      << "raw us" << std::setw(8) << "x raw" << std::endl;
}

void print(std::ostream& out, AllReduceRow const& row, int ranks) {
  out << std::setw(10) << to_string(row.bytes) << std::setw(12) << fixed(row.us, 2) << std::setw(10)
      << fixed(row.algorithm_gb_s(), 2) << std::setw(10) << fixed(row.bus_gb_s(ranks), 2) << std::setw(12)
      << fixed(row.memcpy_us, 2) << std::setw(10) << fixed(row.memcpy_ratio(), 2) << std::setw(10)
      << or_dash(row.raw_us, 2) << std::setw(8) << or_dash(row.ratio(), 2) << std::endl;
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
                              {"ratio", number_or_null(row.ratio())},
                              {"memcpy_us", row.memcpy_us},
                              {"memcpy_ratio", row.memcpy_ratio()},
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

void check_writable(std::string const& file) { write_file(file, ""); }

void write_file(std::string const& file, std::string const& content) {
  std::ofstream out(file, std::ios::binary | std::ios::trunc);
  out << content << std::flush;
  if (!out) throw_errno(text("writing the results to ", file), errno);
}

}  // namespace ddp::bench
