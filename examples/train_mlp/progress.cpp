#include "train_mlp/progress.hpp"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iomanip>
#include <sstream>
#include <string_view>

namespace train_mlp {
namespace {

constexpr std::chrono::milliseconds kLiveInterval{100};
constexpr std::chrono::seconds kPlainInterval{5};

int digits(std::size_t number) { return static_cast<int>(std::to_string(number).size()); }

// "1:02:03", "2:03".
std::string clock(double seconds) {
  auto const total = static_cast<long long>(std::ceil(std::clamp(seconds, 0.0, 1e9)));
  std::ostringstream out;
  out << std::setfill('0');
  if (total >= 3600) {
    out << total / 3600 << ':' << std::setw(2) << total / 60 % 60;
  } else {
    out << total / 60;
  }
  out << ':' << std::setw(2) << total % 60;
  return std::move(out).str();
}

}  // namespace

std::string describe(Standing const& standing) {
  std::ostringstream out;
  out << "epoch " << std::setw(digits(standing.epochs)) << standing.epoch << '/' << standing.epochs
      << "  step " << std::setw(digits(standing.steps)) << standing.step << '/' << standing.steps
      << std::fixed << std::setprecision(4) << "  loss " << standing.loss << std::setprecision(0) << "  "
      << standing.samples_per_second << " samples/s  " << clock(standing.seconds_left) << " left";
  return std::move(out).str();
}

Progress::Mode Progress::detect() {
  char const* const terminal =
      std::getenv("DDP_TERMINAL");  // NOLINT(concurrency-mt-unsafe): no thread sets it
  bool const live =
      ::isatty(STDOUT_FILENO) == 1 || (terminal != nullptr && std::string_view(terminal) == "1");
  return live ? Mode::live : Mode::plain;
}

void Progress::update(Standing const& standing) {
  if (mode_ == Mode::silent) return;
  auto const now = Clock::now();
  if (mode_ == Mode::plain) {
    if (now - last_ >= kPlainInterval) print(describe(standing));
    return;
  }
  if (now - last_ < kLiveInterval) return;
  last_ = now;
  std::string line = describe(standing);
  std::size_t const length = line.size();
  line.resize(std::max(length, live_length_), ' ');
  live_length_ = length;
  std::fprintf(out_, "%s\r", line.c_str());
  std::fflush(out_);
}

void Progress::finish_epoch(Standing const& standing, double test_accuracy) {
  std::ostringstream line;
  line << describe(standing) << std::fixed << std::setprecision(4) << "  test " << test_accuracy;
  print(line.str());
}

void Progress::print(std::string const& line) {
  if (mode_ == Mode::silent) return;
  last_ = Clock::now();
  std::string padded = line;
  padded.resize(std::max(line.size(), live_length_), ' ');
  live_length_ = 0;
  std::fprintf(out_, "%s\n", padded.c_str());
  std::fflush(out_);
}

}  // namespace train_mlp
