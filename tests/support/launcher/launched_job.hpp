// Runs ddp-launch as a user would, and looks at what it leaves behind.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "core/system/file_descriptor.hpp"
#include "support/launcher/job_processes.hpp"

namespace ddp::testing {

/// One run of ddp-launch in an empty directory, with a TMPDIR of its own. Every wait has a deadline. When it
/// goes, no process of the job may live and TMPDIR must be empty: anything else is a failure of the test.
class LaunchedJob {
 public:
  struct Settings {
    std::vector<std::string> environment = {};  ///< "NAME=value", beyond the test's own, TMPDIR included
    std::string input = {};                     ///< what ddp-launch gets as stdin
    std::string out = {};                       ///< a file that is its stdout; empty: a pipe that is read
    bool reader_leaves = false;                 ///< its stdout is a pipe whose reader has gone
    bool read_output = true;                    ///< false: its stdout is a full pipe that nobody reads
    /// Called with the working directory before ddp-launch starts.
    std::function<void(std::filesystem::path const&)> prepare = {};
    bool read_only_directory = false;       ///< its working directory cannot be written (nor can root)
    std::vector<int> ignored_signals = {};  ///< when ddp-launch starts
    std::vector<int> blocked_signals = {};
    int terminal = -1;       ///< follower of a pseudo-terminal that becomes its stdin, and its session's
    bool foreground = true;  ///< of that terminal; false: its shell's process group has it
    bool shell = true;       ///< that could continue it; false: it leads its session, as with "ssh -t"
  };

  explicit LaunchedJob(std::vector<std::string> const& arguments) : LaunchedJob(arguments, Settings{}) {}
  LaunchedJob(std::vector<std::string> const& arguments, Settings const& settings);
  ~LaunchedJob();
  LaunchedJob(LaunchedJob const&) = delete;
  LaunchedJob& operator=(LaunchedJob const&) = delete;

  /// The exit code, or 128 + the signal that ended ddp-launch itself. Fails the test after `timeout`.
  int exit_code(std::chrono::milliseconds timeout = std::chrono::seconds(60));
  /// Until stdout and stderr together hold `text`; fails the test after `timeout`.
  bool shows(std::string const& text, std::chrono::milliseconds timeout = std::chrono::seconds(20));
  /// Sends a signal to ddp-launch, not to its process group.
  void send(int signal) const;

  /// What came so far; all of it after exit_code().
  [[nodiscard]] std::string const& out() const noexcept { return out_; }
  [[nodiscard]] std::string const& err() const noexcept { return err_; }
  /// Lines of stdout, sorted: ranks may speak in any order.
  [[nodiscard]] std::vector<std::string> sorted_lines() const;
  [[nodiscard]] std::filesystem::path const& directory() const noexcept { return directory_; }
  [[nodiscard]] std::filesystem::path temporary_directory() const { return root_ / "tmp"; }
  [[nodiscard]] pid_t pid() const noexcept { return pid_; }
  /// Most memory that ddp-launch itself held, after exit_code().
  [[nodiscard]] long peak_kilobytes() const noexcept { return peak_kilobytes_; }

  /// Until ddp-launch itself is stopped; fails the test after `timeout`.
  bool stops(std::chrono::milliseconds timeout = std::chrono::seconds(10)) const;
  /// Living processes of the job, ddp-launch included, found by a variable in their environment.
  [[nodiscard]] std::vector<JobProcess> processes() const;
  /// True as soon as no process of the job lives, false after `timeout`.
  [[nodiscard]] bool all_gone_within(std::chrono::milliseconds timeout) const;

 private:
  bool pump(std::chrono::milliseconds timeout);

  std::filesystem::path root_;
  std::filesystem::path directory_;
  std::string mark_;
  pid_t pid_ = -1;
  pid_t child_ = -1;  ///< of the test: ddp-launch or, on a terminal, the shell that started it
  FileDescriptor pidfd_;
  FileDescriptor child_pidfd_;
  FileDescriptor out_pipe_;
  FileDescriptor err_pipe_;
  FileDescriptor unread_pipe_;
  std::string out_;
  std::string err_;
  bool ended_ = false;
  int exit_code_ = -1;
  long peak_kilobytes_ = 0;
};

/// To the rank that was started as the `index`th of those that live, if its process is called `program`.
/// Fails the test, and sends nothing, if there is none.
void send_to_rank(LaunchedJob const& job, std::string const& program, std::size_t index, int signal);

/// {"--cpus", N, "--no-log-files", "--", "/bin/sh", "-c", script}
[[nodiscard]] std::vector<std::string> shell_ranks(int ranks, std::string const& script,
                                                   std::vector<std::string> const& options = {});
/// The same for `launched_rank`, the program in launched_rank.cpp.
[[nodiscard]] std::vector<std::string> program_ranks(int ranks, std::vector<std::string> const& arguments,
                                                     std::vector<std::string> const& options = {});
/// The same with options that choose the ranks, {"--gpus", "0"}.
[[nodiscard]] std::vector<std::string> launched_rank_with(std::vector<std::string> const& options,
                                                          std::vector<std::string> const& arguments);

}  // namespace ddp::testing
