#include "launcher/mpirun_output.hpp"

#include <algorithm>
#include <charconv>

namespace ddp::launcher {

TaggedLine untag(std::string_view line) {
  std::size_t const comma = line.find(',');
  std::size_t const end = std::min(line.find(">:"), line.size());
  std::size_t const bracket = std::min(line.find("]<std"), line.size());
  bool const ordered = comma < bracket && bracket < end && end < line.size();
  if (!line.starts_with('[') || !ordered) return {std::nullopt, std::string(line)};
  int rank = 0;
  auto const [stop, error] = std::from_chars(line.data() + comma + 1, line.data() + bracket, rank);
  if (error != std::errc{} || stop != line.data() + bracket || rank < 0)
    return {std::nullopt, std::string(line)};
  std::string_view const tag = line.substr(0, end + 2);
  std::string text(line.substr(tag.size()));
  for (std::size_t again = text.find(tag); again != std::string::npos; again = text.find(tag, again)) {
    text.erase(again, tag.size());
  }
  return {Rank{rank}, std::move(text)};
}

std::optional<Rank> named_culprit(std::string_view line) {
  auto const number_behind = [&](std::string_view words, std::string_view separator) -> std::optional<Rank> {
    std::size_t at = line.find(words);
    if (at == std::string_view::npos) return std::nullopt;
    at = separator.empty() ? at + words.size() : line.find(separator, at + words.size());
    if (at == std::string_view::npos) return std::nullopt;
    int rank = 0;
    auto const [stop, error] =
        std::from_chars(line.data() + at + separator.size(), line.data() + line.size(), rank);
    if (error != std::errc{} || rank < 0) return std::nullopt;
    return Rank{rank};
  };
  if (auto const rank = number_behind("process rank ", "")) return rank;
  return number_behind("Process name: [[", "],");
}

}  // namespace ddp::launcher
