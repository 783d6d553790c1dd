#include "launcher/rank_stream.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "ddp/core/text.hpp"
#include "launcher/mpirun_output.hpp"

namespace ddp::launcher {
namespace {

constexpr std::size_t kMostInAPipe = std::size_t{2} << 20;

}  // namespace

RankStream::RankStream(Rank rank, Stream stream, FileDescriptor pipe, FileDescriptor file,
                       std::string file_path)
    : rank_(rank),
      stream_(stream),
      pipe_(std::move(pipe)),
      file_(std::move(file)),
      file_path_(std::move(file_path)) {}

bool RankStream::forward(Console& console, std::size_t limit) {
  static std::array<char, std::size_t{64} << 10> buffer;  // one thread
  while (limit > 0) {
    ssize_t const count = read(pipe_.get(), buffer.data(), std::min(limit, buffer.size()));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) return true;
    if (count <= 0) return false;
    std::string_view const bytes(buffer.data(), static_cast<std::size_t>(count));
    write_file(console, bytes);
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
  file_.reset();
}

void RankStream::write_file(Console& console, std::string_view bytes) {
  while (file_ && !bytes.empty()) {
    ssize_t const count = write(file_.get(), bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      console.say(text("warning: cannot write ", file_path_, ": ", std::strerror(errno),
                       "; the rest of this output is only shown"));
      file_.reset();
      return;
    }
    bytes.remove_prefix(static_cast<std::size_t>(count));
  }
}

void RankStream::show(Console& console, std::string_view line, LineSplitter::End end) {
  if (tagged_) return show_tagged(console, line, end);
  bool const is_line = end == LineSplitter::End::newline || end == LineSplitter::End::cut;
  if (stream_ == Stream::err && is_line) {
    if (last_lines_.size() == kLastLines) last_lines_.pop_front();
    last_lines_.emplace_back(line.substr(0, kLongestLastLine));
  }
  console.rank_line(rank_, stream_, line, end);
}

// Of mpirun: each line is a rank's, or a word of its own.
void RankStream::show_tagged(Console& console, std::string_view line, LineSplitter::End end) {
  if (end == LineSplitter::End::late_newline) return;
  TaggedLine const tagged = untag(line);
  if (!tagged.rank) {
    if (tagged.text.find_first_not_of("- ") != std::string::npos) console.say("mpirun: " + tagged.text);
    return;
  }
  console.rank_line(*tagged.rank, stream_, tagged.text, LineSplitter::End::newline);
}

}  // namespace ddp::launcher
