#include "launcher/mpirun/mpirun_output.hpp"

#include <algorithm>
#include <charconv>

namespace ddp::launcher {

namespace {

constexpr std::size_t kLongestTag = 40;

struct Tag {
  Rank rank{0};
  std::size_t length = 0;      // 0: there is none
  bool is_incomplete = false;  // with more bytes it may be one
};

Tag tag_at(std::string_view text, bool has_space) {
  std::size_t at = 1;
  int number = 0;
  for (char const behind : {',', ']'}) {  // the job's number, the rank's
    auto const [stop, error] = std::from_chars(text.data() + at, text.data() + text.size(), number);
    auto const end = static_cast<std::size_t>(stop - text.data());
    if (end == text.size()) return {.is_incomplete = true};
    if (error != std::errc{} || text[end] != behind) return {};
    at = end + 1;
  }
  for (std::string_view rest : {"<stdout>: ", "<stderr>: "}) {
    if (!has_space) rest.remove_suffix(1);
    std::string_view const found = text.substr(at, rest.size());
    if (found == rest && number >= 0) return {.rank = Rank{number}, .length = at + rest.size()};
    if (found.size() < rest.size() && rest.starts_with(found)) return {.is_incomplete = true};
  }
  return {};
}

}  // namespace

void TagReader::feed(std::string_view bytes, Sink const& sink) {
  held_.append(bytes);
  std::string_view left = held_;
  while (!left.empty()) {
    if (left.front() == '[') {
      Tag const tag = tag_at(left, has_space_);
      if (tag.length > 0) {
        rank_ = tag.rank;
        at_line_start_ = false;
        left.remove_prefix(tag.length);
        continue;
      }
      if (tag.is_incomplete && left.size() < kLongestTag) break;
    }
    if (at_line_start_) rank_.reset();
    // Up to the next line or what may be a tag.
    std::size_t length = left.front() == '\n' ? 0 : std::min(left.find_first_of("[\n", 1), left.size());
    if (length < left.size() && left[length] == '\n') ++length;
    sink(rank_, left.substr(0, length));
    at_line_start_ = left[length - 1] == '\n';
    left.remove_prefix(length);
  }
  held_.erase(0, held_.size() - left.size());
}

void TagReader::finish(Sink const& sink) {
  if (!held_.empty()) sink(at_line_start_ ? std::nullopt : rank_, held_);
  held_.clear();
}

}  // namespace ddp::launcher
