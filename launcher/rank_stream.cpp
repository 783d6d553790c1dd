#include "launcher/rank_stream.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "ddp/core/text.hpp"
#include "launcher/mpirun_output.hpp"

namespace ddp::launcher {
namespace {

constexpr std::size_t kMostInAPipe = std::size_t{2} << 20;

}  // namespace

RankStream::RankStream(Rank rank, Stream stream, FileDescriptor pipe, LogFile file)
    : rank_(rank), stream_(stream), pipe_(std::move(pipe)), output_{std::move(file), {}} {}

RankStream::RankStream(int ranks, Stream stream, FileDescriptor pipe, OpenFile open)
    : stream_(stream), pipe_(std::move(pipe)), open_file_(std::move(open)), ranks_(ranks) {}

bool RankStream::forward(Console& console, std::size_t limit) {
  static std::array<char, std::size_t{64} << 10> buffer;  // one thread
  while (limit > 0) {
    ssize_t const count = read(pipe_.get(), buffer.data(), std::min(limit, buffer.size()));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) return true;
    if (count <= 0) return false;
    std::string_view const bytes(buffer.data(), static_cast<std::size_t>(count));
    output_.file.write(console, bytes);
    splitter_.feed(bytes, [&](std::string_view line, LineSplitter::End end) { show(console, line, end); });
    limit -= bytes.size();
  }
  return true;
}

void RankStream::finish(Console& console) {
  if (!pipe_) return;
  forward(console, kMostInAPipe);
  splitter_.finish([&](std::string_view line, LineSplitter::End end) { show(console, line, end); });
  pipe_.reset();
  output_.file = {};
  for (auto& [rank, output] : outputs_) output.file = {};
}

void RankStream::keep(Output& output, std::string_view line) const {
  if (stream_ != Stream::err) return;
  if (output.last_lines.size() == kLastLines) output.last_lines.pop_front();
  output.last_lines.emplace_back(line.substr(0, kLongestLastLine));
}

void RankStream::show(Console& console, std::string_view line, LineSplitter::End end) {
  if (tagged()) return show_tagged(console, line, end);
  bool const is_line = end == LineSplitter::End::newline || end == LineSplitter::End::cut;
  if (is_line) keep(output_, line);
  console.rank_line(rank_, stream_, line, end);
}

// Each line is a rank's, or a word of mpirun's own.
void RankStream::show_tagged(Console& console, std::string_view line, LineSplitter::End end) {
  if (end == LineSplitter::End::late_newline) return;
  TaggedLine tagged = untag(line);
  if (tagged.rank && tagged.rank->value() >= ranks_) tagged = {std::nullopt, std::string(line)};
  auto const [place, is_new] = outputs_.try_emplace(tagged.rank ? tagged.rank->value() : -1);
  Output& output = place->second;
  if (is_new) output.file = open_file_(tagged.rank);
  output.file.write(console, tagged.text + "\n");
  if (tagged.rank) {
    keep(output, tagged.text);
    console.rank_line(*tagged.rank, stream_, tagged.text, LineSplitter::End::newline);
    return;
  }
  if (!culprit_) culprit_ = named_culprit(tagged.text);
  if (tagged.text.find_first_not_of("- ") != std::string::npos) console.say("mpirun: " + tagged.text);
}

std::vector<std::string> RankStream::last_lines() const {
  if (!tagged()) return {output_.last_lines.begin(), output_.last_lines.end()};
  std::vector<std::string> lines;
  auto const found = culprit_ ? outputs_.find(culprit_->value()) : outputs_.end();
  if (found == outputs_.end()) return lines;
  for (std::string const& line : found->second.last_lines) lines.push_back(text("[", *culprit_, "] ", line));
  return lines;
}

}  // namespace ddp::launcher
