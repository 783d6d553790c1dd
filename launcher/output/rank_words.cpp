#include "launcher/output/rank_words.hpp"

#include <cctype>
#include <vector>

#include "ddp/core/text.hpp"
#include "launcher/plan/cores.hpp"

namespace ddp::launcher {

std::string list_ranks(std::span<Rank const> ranks) {
  std::vector<int> numbers;
  for (Rank const rank : ranks) numbers.push_back(rank.value());
  return text(numbers.size() == 1 ? "rank " : "ranks ", cpu_list(numbers));
}

std::string without_own_number(std::string_view words, Rank rank) {
  std::string const own = text("rank ", rank);
  std::string result;
  for (std::size_t at = words.find(own); at != std::string_view::npos; at = words.find(own)) {
    std::size_t const end = at + own.size();
    bool const whole = end == words.size() || std::isdigit(static_cast<unsigned char>(words[end])) == 0;
    result += words.substr(0, at);
    result += whole ? "this rank" : own;
    words.remove_prefix(end);
  }
  return result += words;
}

}  // namespace ddp::launcher
