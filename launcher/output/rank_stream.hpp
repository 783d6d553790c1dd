// One of a rank's two output streams: from its pipe to its file and to the console.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/system/file_descriptor.hpp"
#include "ddp/core/ids.hpp"
#include "launcher/mpirun/mpirun_output.hpp"
#include "launcher/output/console.hpp"
#include "launcher/output/line_splitter.hpp"
#include "launcher/output/log_file.hpp"

namespace ddp::launcher {

/// The file gets the bytes as they come, the console whole lines. Memory is bounded whatever the rank writes.
/// An mpirun's stream holds those of all its ranks, each with a file of its own.
class RankStream {
 public:
  static constexpr std::size_t kMostInAPipe = (2_MiB).value;
  static constexpr std::size_t kLastLines = 20;          ///< kept for the report
  static constexpr std::size_t kLongestLastLine = 1024;  ///< of each

  /// `pipe` is non-blocking.
  RankStream(Rank rank, OutputStream stream, FileDescriptor pipe, LogFile file, bool timestamps);

  /// A rank's file, or that of mpirun's own words.
  using OpenFile = std::function<LogFile(std::optional<Rank>)>;
  /// What `mpirun --tag-output` writes, for `ranks` ranks. Files are opened when there is a line for them.
  RankStream(int ranks, OutputStream stream, FileDescriptor pipe, OpenFile open, bool timestamps,
             TagReader tags);

  /// mpirun's own words go to their file only.
  void silence_mpirun() noexcept { mpirun_is_silent_ = true; }

  /// Moves at most `limit` bytes. False once the pipe has ended.
  bool forward(Console& console, std::size_t limit);
  /// Moves what is in the pipe, shows an incomplete last line, and closes both ends.
  void finish(Console& console);

  [[nodiscard]] int fd() const noexcept { return pipe_.get(); }
  [[nodiscard]] bool open() const noexcept { return static_cast<bool>(pipe_); }
  /// LogFile::problem() of its file, under mpirun of the first that has one.
  [[nodiscard]] std::string file_problem() const;
  /// The last lines of the rank's stderr.
  [[nodiscard]] std::vector<std::string> last_lines(Rank rank) const;

 private:
  static constexpr int kMpirun = -1;  ///< the key of mpirun's own words
  struct Output {
    LogFile file{};
    std::deque<std::string> last_lines{};
    LineSplitter splitter{};
    LineStamper stamper{};
  };

  [[nodiscard]] bool tagged() const noexcept { return static_cast<bool>(open_file_); }
  void take(Console& console, std::string_view bytes);
  void take_of(Console& console, std::optional<Rank> rank, std::string_view bytes);
  void show(Console& console, std::optional<Rank> rank, Output& output, std::string_view line,
            LineSplitter::End end);
  void keep(Output& output, std::string_view line) const;

  Rank rank_{0};
  OutputStream stream_;
  FileDescriptor pipe_;
  bool timestamps_;
  OpenFile open_file_;             // of an mpirun
  int ranks_;                      // all outputs are of ranks below this
  std::map<int, Output> outputs_;  // by rank, or kMpirun
  TagReader tags_;
  bool mpirun_is_silent_ = false;
};

}  // namespace ddp::launcher
