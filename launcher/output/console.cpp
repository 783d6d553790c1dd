#include "launcher/output/console.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "ddp/core/text.hpp"

namespace ddp::launcher {
namespace {

constexpr std::size_t kCongestion = (1_MiB).value;
constexpr Deadline::Duration kReaderTimeout{30000};
constexpr std::string_view kEraseLine = "\r\x1b[K";

std::string prefix_of(Rank rank) { return ddp::text("[", rank, "] "); }

bool same_place(int a, int b) {
  struct stat first {};
  struct stat second {};
  return fstat(a, &first) == 0 && fstat(b, &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino;
}

}  // namespace

Console::Console(Options const& options, int out_fd, int err_fd)
    : options_(options), out_(out_fd), files_have_all_(options.log_files) {
  if (!same_place(out_fd, err_fd)) err_.emplace(err_fd);
}

bool Console::shown(Rank rank, OutputStream stream) const {
  bool const wanted = stream == OutputStream::out ? options_.show_stdout : options_.show_stderr;
  return wanted && !options_.quiet && (!options_.only_rank || *options_.only_rank == rank);
}

bool Console::shows_live_lines() const {
  return shown(Rank{0}, OutputStream::out) && (out_.is_terminal() || (err_ && err_->is_terminal()));
}

TerminalStreams Console::terminal_streams() const {
  return {leader(), shown(leader(), OutputStream::out) && out_.is_terminal(),
          shown(leader(), OutputStream::err) && (err_ ? *err_ : out_).is_terminal()};
}

int Console::taken_columns(int ranks) const {
  Rank const longest{std::max(ranks - 1, 0)};
  std::size_t const prefix = options_.prefix ? prefix_of(longest).size() : 0;
  return static_cast<int>(prefix + (options_.timestamps ? LineStamper::kWidth : 0));
}

bool Console::congested() const noexcept {
  return out_.pending() > kCongestion || (err_ && err_->pending() > kCongestion);
}

void Console::clear_live_line(Sink& sink) {
  if (!live_line_ || !sink.is_terminal()) return;
  sink.write(kEraseLine);
  live_line_ = false;
}

void Console::rank_line(Rank rank, OutputStream stream, std::string_view text, LineSplitter::End end) {
  if (!shown(rank, stream)) return;
  bool const is_line = end == LineSplitter::End::newline || end == LineSplitter::End::cut;
  if (repeats_ && is_line && stream == OutputStream::err && repeats_->repeats(rank, text)) return;
  Sink& target = sink(stream);
  bool const live = end == LineSplitter::End::carriage_return;
  if (target.is_terminal() && rank != leader() && (live || end == LineSplitter::End::late_newline)) return;
  if (end == LineSplitter::End::late_newline) {
    target.write("\n");
    if (target.is_terminal()) live_line_ = false;
  } else {
    clear_live_line(target);
    if (options_.prefix) target.write(prefix_of(rank));
    target.write(text);
    target.write(live ? "\r" : "\n");
    live_line_ = live_line_ || (live && target.is_terminal());
  }
  flush(target);
}

void Console::flush(Sink& target) {
  target.flush();
  if (out_.problem() == 0 || !err_ || std::exchange(loss_said_, true)) return;
  say(ddp::text("warning: cannot write to stdout: ", std::strerror(out_.problem()),
                "; what the ranks print is ",
                files_have_all_ ? "in the log files only" : "lost from here on"));
}

void Console::group_repeats() {
  if (!repeats_) repeats_.emplace();
}

void Console::end_repeats() {
  std::string const summary = repeats_ ? repeats_->summary() : std::string{};
  if (!summary.empty()) say(summary);
  repeats_.reset();
}

void Console::say(std::string_view text) { print(ddp::text("[ddp-launch] ", text, "\n")); }

void Console::say_unwritten(std::string_view text) {
  files_have_all_ = false;
  say(ddp::text("warning: ", text));
}

void Console::print(std::string_view text) {
  Sink& target = sink(OutputStream::err);
  clear_live_line(target);
  target.write(text);
  flush(target);
}

void Console::finish(int interrupt_fd) {
  if (live_line_) sink(out_.is_terminal() ? OutputStream::out : OutputStream::err).write("\n");
  live_line_ = false;
  std::size_t const dropped = out_.flush_all(kReaderTimeout, interrupt_fd);
  flush(out_);
  if (dropped > 0 && err_) {
    say(ddp::text("warning: ", dropped,
                  " bytes of the ranks' output were not shown, since nobody read stdout for ",
                  seconds(kReaderTimeout), " s or a signal came",
                  files_have_all_ ? "; the log files hold everything" : ""));
  }
  if (err_) err_->flush_all(kReaderTimeout, interrupt_fd);
}

}  // namespace ddp::launcher
