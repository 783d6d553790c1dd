#include "launcher/output/rank_stream.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <utility>

#include "ddp/core/text.hpp"

namespace ddp::launcher {
RankStream::RankStream(Rank rank, OutputStream stream, FileDescriptor pipe, LogFile file, bool timestamps)
    : rank_(rank),
      stream_(stream),
      pipe_(std::move(pipe)),
      timestamps_(timestamps),
      ranks_(rank.value() + 1) {
  outputs_[rank.value()].file = std::move(file);
}

RankStream::RankStream(int ranks, OutputStream stream, FileDescriptor pipe, OpenFile open, bool timestamps,
                       TagReader tags)
    : stream_(stream),
      pipe_(std::move(pipe)),
      timestamps_(timestamps),
      open_file_(std::move(open)),
      ranks_(ranks),
      tags_(std::move(tags)) {}

bool RankStream::forward(Console& console, std::size_t limit) {
  static std::array<char, (64_KiB).value> buffer;  // one thread
  while (limit > 0) {
    ssize_t const count = ::read(pipe_.get(), buffer.data(), std::min(limit, buffer.size()));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) return true;
    if (count <= 0) return false;
    take(console, {buffer.data(), static_cast<std::size_t>(count)});
    limit -= static_cast<std::size_t>(count);
  }
  return true;
}

void RankStream::take(Console& console, std::string_view bytes) {
  if (!tagged()) return take_of(console, rank_, bytes);
  tags_.feed(bytes, [&](auto rank, std::string_view piece) { take_of(console, rank, piece); });
}

void RankStream::take_of(Console& console, std::optional<Rank> rank, std::string_view bytes) {
  if (rank && rank->value() >= ranks_) rank.reset();  // not a tag of this mpirun
  auto const [place, is_new] = outputs_.try_emplace(rank ? rank->value() : kMpirun);
  Output& output = place->second;
  if (is_new) output.file = open_file_(rank);
  std::string stamped;
  if (timestamps_ && rank) {  // mpirun's own words are not a rank's
    stamped = output.stamper.stamp(bytes, std::chrono::system_clock::now());
    bytes = stamped;
  }
  output.file.write(console, bytes);
  output.splitter.feed(
      bytes, [&](std::string_view line, LineSplitter::End end) { show(console, rank, output, line, end); });
}

void RankStream::show(Console& console, std::optional<Rank> rank, Output& output, std::string_view line,
                      LineSplitter::End end) {
  bool const is_line = end == LineSplitter::End::newline || end == LineSplitter::End::cut;
  if (rank) {
    if (is_line) keep(output, line);
    console.rank_line(*rank, stream_, line, end);
  } else if (is_line && !mpirun_is_silent_) {
    if (line.find_first_not_of("- ") != std::string_view::npos) console.say(text("mpirun: ", line));
  }
}

void RankStream::keep(Output& output, std::string_view line) const {
  if (stream_ != OutputStream::err) return;
  if (output.last_lines.size() == kLastLines) output.last_lines.pop_front();
  output.last_lines.emplace_back(line.substr(0, kLongestLastLine));
}

void RankStream::finish(Console& console) {
  if (!pipe_) return;
  forward(console, kMostInAPipe);
  tags_.finish([&](auto rank, std::string_view piece) { take_of(console, rank, piece); });
  for (auto& entry : outputs_) {
    auto const rank = entry.first == kMpirun ? std::nullopt : std::optional(Rank{entry.first});
    entry.second.splitter.finish(
        [&](std::string_view line, LineSplitter::End end) { show(console, rank, entry.second, line, end); });
    entry.second.file.close();
  }
  pipe_.reset();
}

std::string RankStream::file_problem() const {
  for (auto const& [rank, output] : outputs_) {
    if (!output.file.problem().empty()) return output.file.problem();
  }
  return {};
}

std::vector<std::string> RankStream::last_lines(Rank rank) const {
  auto const found = outputs_.find(rank.value());
  if (found == outputs_.end()) return {};
  return {found->second.last_lines.begin(), found->second.last_lines.end()};
}

}  // namespace ddp::launcher
