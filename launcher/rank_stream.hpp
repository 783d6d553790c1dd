// One of a rank's two output streams: from its pipe to its file and to the console.
#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "core/file_descriptor.hpp"
#include "ddp/core/ids.hpp"
#include "launcher/console.hpp"
#include "launcher/line_splitter.hpp"

namespace ddp::launcher {

/// The file gets the bytes as they come, the console whole lines. Memory is bounded whatever the rank writes.
class RankStream {
 public:
  static constexpr std::size_t kLastLines = 20;          ///< kept for the report
  static constexpr std::size_t kLongestLastLine = 1024;  ///< of each

  /// `pipe` is non-blocking. `file` may be empty: no log file.
  RankStream(Rank rank, Stream stream, FileDescriptor pipe, FileDescriptor file, std::string file_path);

  /// The lines are those of `mpirun --tag-output`, not of one rank.
  void expect_tags() noexcept { tagged_ = true; }

  /// Moves at most `limit` bytes. False once the pipe has ended.
  bool forward(Console& console, std::size_t limit);
  /// Moves what is in the pipe, shows a partial line, and closes both ends.
  void finish(Console& console);

  [[nodiscard]] int fd() const noexcept { return pipe_.get(); }
  [[nodiscard]] bool open() const noexcept { return static_cast<bool>(pipe_); }
  [[nodiscard]] std::vector<std::string> last_lines() const {
    return {last_lines_.begin(), last_lines_.end()};
  }

 private:
  void write_file(Console& console, std::string_view bytes);
  void show_tagged(Console& console, std::string_view line, LineSplitter::End end);
  void show(Console& console, std::string_view line, LineSplitter::End end);

  Rank rank_;
  Stream stream_;
  FileDescriptor pipe_;
  FileDescriptor file_;
  std::string file_path_;
  bool tagged_ = false;
  LineSplitter splitter_;
  std::deque<std::string> last_lines_;
};

}  // namespace ddp::launcher
