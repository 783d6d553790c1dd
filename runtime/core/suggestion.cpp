#include "core/suggestion.hpp"

#include <algorithm>
#include <numeric>
#include <vector>

namespace ddp {

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      std::size_t const replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row.back();
}

std::optional<std::string> nearest(std::string_view given, std::span<std::string const> known) {
  std::optional<std::string> best;
  std::size_t best_distance = std::max<std::size_t>(2, given.size() / 3) + 1;
  for (std::string const& word : known) {
    bool const beginning = given.size() >= 2 && (word.starts_with(given) || given.starts_with(word));
    std::size_t const distance = beginning ? 1 : edit_distance(given, word);
    if (distance < best_distance && distance < given.size()) {
      best = word;
      best_distance = distance;
    }
  }
  return best;
}

}  // namespace ddp
