// The launcher's stdout and stderr: the ranks' lines with their prefix, and its own words.
#pragma once

#include <optional>
#include <string_view>

#include "ddp/core/ids.hpp"
#include "launcher/options/options.hpp"
#include "launcher/output/line_splitter.hpp"
#include "launcher/output/repeated_lines.hpp"
#include "launcher/output/sink.hpp"
#include "launcher/plan/plan.hpp"

namespace ddp::launcher {

enum class OutputStream { out, err };

/// Decides which lines of the ranks are shown, and keeps lines whole.
class Console {
 public:
  Console(Options const& options, int out_fd, int err_fd);

  /// A line of a rank. A pipe or file gets all. A terminal shows lines that end with "\r" only of rank 0, or
  /// of the rank of --only-rank: several bars on one line would be unreadable.
  void rank_line(Rank rank, OutputStream stream, std::string_view text, LineSplitter::End end);
  /// After a failure many ranks say the same. From now on a line of stderr is not shown if another rank has
  /// written it since this call.
  void group_repeats();
  /// Says how many lines were left out and of which ranks, and shows everything again.
  void end_repeats();
  /// Writes as much as the reader of that stream takes now. Says once on stderr if it cannot be written.
  void flush(OutputStream stream) { flush(sink(stream)); }
  /// Whether something that was to be shown could not be written, although it had a reader.
  [[nodiscard]] bool output_lost() const noexcept {
    return out_.problem() != 0 || (err_ && err_->problem() != 0);
  }
  /// "[ddp-launch] text" on stderr.
  void say(std::string_view text);
  /// Warns that log files lack a part of what was written.
  void say_unwritten(std::string_view text);
  /// Text that needs no prefix, on stderr.
  void print(std::string_view text);

  /// Whether rank 0's output is shown on a terminal.
  [[nodiscard]] bool shows_live_lines() const;
  /// The streams of the job's leader, the rank whose live lines are shown, that appear on a terminal.
  [[nodiscard]] TerminalStreams terminal_streams() const;
  /// How many columns of a line the prefix of a rank takes.
  [[nodiscard]] int taken_columns(int ranks) const;
  /// Whether so much waits for the reader that the ranks' output should not be read for now.
  [[nodiscard]] bool congested() const noexcept;
  /// Ends a progress bar's line and writes what is left, until the reader takes no more or `interrupt_fd` is
  /// readable. Says on stderr how much was dropped.
  void finish(int interrupt_fd);
  /// Whether stdout and stderr lead to one place. Then they share a sink, so that lines stay whole.
  [[nodiscard]] bool one_place() const noexcept { return !err_; }
  /// Whether stdout's reader has not taken all yet, and stderr leads elsewhere.
  [[nodiscard]] bool only_stdout_waits() const noexcept { return err_ && out_.pending() > 0; }

  [[nodiscard]] Sink& sink(OutputStream stream) noexcept {
    return stream == OutputStream::out || !err_ ? out_ : *err_;
  }

 private:
  [[nodiscard]] Rank leader() const { return options_.only_rank.value_or(Rank{0}); }
  [[nodiscard]] bool shown(Rank rank, OutputStream stream) const;
  void clear_live_line(Sink& sink);
  void flush(Sink& target);

  Options options_;
  Sink out_;
  std::optional<Sink> err_;  ///< none where stderr is stdout
  std::optional<RepeatedLines> repeats_;
  bool files_have_all_;
  bool loss_said_ = false;
  bool live_line_ = false;  ///< the terminal shows a line that ended with "\r"
};

}  // namespace ddp::launcher
