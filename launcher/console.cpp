#include "launcher/console.hpp"

#include "ddp/core/text.hpp"

namespace ddp::launcher {
namespace {

constexpr std::size_t kCongestion = std::size_t{1} << 20;
constexpr Deadline::Duration kReaderPatience{30000};
constexpr std::string_view kEraseLine = "\r\x1b[K";

}  // namespace

Console::Console(Options const& options, int out_fd, int err_fd)
    : options_(options), out_(out_fd), err_(err_fd) {}

bool Console::shown(Rank rank, Stream stream) const {
  bool const wanted = stream == Stream::out ? options_.show_stdout : options_.show_stderr;
  return wanted && !options_.quiet && (!options_.only_rank || *options_.only_rank == rank);
}

bool Console::shows_live_lines() const {
  return shown(Rank{0}, Stream::out) && (out_.is_terminal() || err_.is_terminal());
}

bool Console::congested() const noexcept {
  return out_.pending() > kCongestion || err_.pending() > kCongestion;
}

void Console::clear_live_line(Sink& sink) {
  if (!live_line_ || !sink.is_terminal()) return;
  sink.write(kEraseLine);
  live_line_ = false;
}

void Console::rank_line(Rank rank, Stream stream, std::string_view text, LineSplitter::End end) {
  if (!shown(rank, stream)) return;
  Sink& target = sink(stream);
  bool const live = end == LineSplitter::End::carriage_return;
  Rank const leader = options_.only_rank.value_or(Rank{0});
  if (target.is_terminal() && rank != leader && (live || end == LineSplitter::End::late_newline)) return;
  if (end == LineSplitter::End::late_newline) {
    target.write("\n");
    if (target.is_terminal()) live_line_ = false;
  } else {
    clear_live_line(target);
    if (options_.prefix) target.write(ddp::text("[", rank, "] "));
    target.write(text);
    target.write(live ? "\r" : "\n");
    live_line_ = live_line_ || (live && target.is_terminal());
  }
  target.flush();
}

void Console::say(std::string_view text) { print(ddp::text("[ddp-launch] ", text, "\n")); }

void Console::print(std::string_view text) {
  clear_live_line(err_);
  err_.write(text);
  err_.flush();
}

void Console::finish() {
  Sink* const terminal = out_.is_terminal() ? &out_ : &err_;
  if (live_line_) terminal->write("\n");
  live_line_ = false;
  out_.flush_all(kReaderPatience);
  err_.flush_all(kReaderPatience);
}

}  // namespace ddp::launcher
