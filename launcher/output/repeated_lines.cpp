#include "launcher/output/repeated_lines.hpp"

#include <vector>

#include "ddp/core/text.hpp"
#include "launcher/report/report.hpp"

namespace ddp::launcher {
namespace {

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
