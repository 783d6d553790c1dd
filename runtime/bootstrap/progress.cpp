#include "bootstrap/progress.hpp"

#include <array>
#include <charconv>
#include <cmath>
#include <system_error>

namespace ddp {
namespace {

constexpr std::string_view kStep = "step ";
constexpr std::string_view kPace = ", ";
constexpr std::string_view kSlowest = " ms, slowest rank ";
constexpr std::string_view kLate = " by ";
constexpr std::string_view kEnd = " ms";
// What is longer is no time of a step, and has no room.
constexpr double kLongestMs = 1e9;

class Writer {
 public:
  explicit Writer(std::span<char> room) : begin_(room.data()), at_(begin_), end_(begin_ + room.size()) {}
  void put(std::string_view words) { at_ += words.copy(at_, static_cast<std::size_t>(end_ - at_)); }
  template <class... Format>
  void put_number(auto value, Format... format) {
    at_ = std::to_chars(at_, end_, value, format...).ptr;
  }
  [[nodiscard]] std::string_view words() const { return {begin_, static_cast<std::size_t>(at_ - begin_)}; }

 private:
  char* begin_;
  char* at_;
  char* end_;
};

// Takes what stands at the beginning of `words`; false if it does not.
bool take(std::string_view& words, std::string_view expected) {
  if (!words.starts_with(expected)) return false;
  words.remove_prefix(expected.size());
  return true;
}
bool take(std::string_view& words, auto& number) {
  auto const [end, error] = std::from_chars(words.data(), words.data() + words.size(), number);
  if (error != std::errc{}) return false;
  words.remove_prefix(static_cast<std::size_t>(end - words.data()));
  return true;
}

}  // namespace

std::string_view write_progress(Progress const& progress, std::span<char, kLongestProgress> room) noexcept {
  Writer writer(room);
  writer.put(kStep);
  writer.put_number(progress.steps);
  if (progress.pace && progress.pace->step_ms < kLongestMs && progress.pace->late_ms < kLongestMs) {
    writer.put(kPace);
    writer.put_number(progress.pace->step_ms, std::chars_format::fixed, 3);
    writer.put(kSlowest);
    writer.put_number(progress.pace->slowest.value());
    writer.put(kLate);
    writer.put_number(progress.pace->late_ms, std::chars_format::fixed, 3);
    writer.put(kEnd);
  }
  return writer.words();
}

std::optional<Progress> read_progress(std::string_view words) noexcept {
  Progress progress;
  if (!take(words, kStep) || !take(words, progress.steps)) return std::nullopt;
  Progress::Pace pace;
  int slowest = -1;
  bool const is_pace = take(words, kPace) && take(words, pace.step_ms) && take(words, kSlowest) &&
                       take(words, slowest) && take(words, kLate) && take(words, pace.late_ms) &&
                       words == kEnd;
  if (!is_pace || slowest < 0 || !std::isfinite(pace.step_ms) || !std::isfinite(pace.late_ms))
    return progress;
  pace.slowest = Rank{slowest};
  progress.pace = pace;
  return progress;
}

}  // namespace ddp
