#include "launcher/output/repeated_lines.hpp"

#include <vector>

#include "core/ascii.hpp"
#include "ddp/core/text.hpp"
#include "launcher/report/report.hpp"

namespace ddp::launcher {
namespace {

/// `words` with "this rank" for its own "rank 3", so that lines of ranks that say the same can be grouped.
std::string without_own_number(std::string_view words, Rank rank) {
  std::string const own = text("rank ", rank);
  std::string result;
  for (std::size_t at = words.find(own); at != std::string_view::npos; at = words.find(own)) {
    std::size_t const end = at + own.size();
    bool const whole = end == words.size() || !is_digit(words[end]);
    result += words.substr(0, at);
    result += whole ? "this rank" : own;
    words.remove_prefix(end);
  }
  return result += words;
}

constexpr std::size_t kMostLines = 1024;
constexpr std::size_t kLongestLine = 4096;

}  // namespace

bool RepeatedLines::repeats(Rank rank, std::string_view line) {
  if (line.size() > kLongestLine) return false;
  std::string const words = without_own_number(line, rank);
  auto const known = first_.find(words);
  if (known == first_.end()) {
    if (first_.size() < kMostLines) first_.emplace(words, rank);
    return false;
  }
  if (known->second == rank) return false;
  repeating_.insert(rank);
  ++count_;
  return true;
}

std::string RepeatedLines::summary() const {
  if (count_ == 0) return {};
  std::vector<Rank> const ranks(repeating_.begin(), repeating_.end());
  return text(list_ranks(ranks), ": ", count_, count_ == 1 ? " line" : " lines",
              " of stderr not shown, since another rank wrote the same above");
}

}  // namespace ddp::launcher
