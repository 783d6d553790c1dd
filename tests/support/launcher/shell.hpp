// Runs a command as a user would, and keeps all that came of it.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace ddp::testing {

/// A folder that goes with its owner.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "ddp-test-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed: " + name);
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(TemporaryFolder const&) = delete;
  TemporaryFolder& operator=(TemporaryFolder const&) = delete;
  [[nodiscard]] std::filesystem::path const& path() const noexcept { return path_; }

 private:
  std::filesystem::path path_;
};

/// Until its end the process is in `folder`.
class InFolder {
 public:
  explicit InFolder(std::filesystem::path const& folder) : before_(std::filesystem::current_path()) {
    std::filesystem::create_directories(folder);
    std::filesystem::current_path(folder);
  }
  ~InFolder() {
    std::error_code ignored;
    std::filesystem::current_path(before_, ignored);
  }
  InFolder(InFolder const&) = delete;
  InFolder& operator=(InFolder const&) = delete;

 private:
  std::filesystem::path before_;
};

[[nodiscard]] inline std::string read_file(std::filesystem::path const& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

[[nodiscard]] inline std::vector<std::string> lines(std::string const& text) {
  std::vector<std::string> all;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) all.push_back(line);
  return all;
}

struct ShellOutcome {
  int exit_code = -1;  ///< 124 when it did not end in time
  std::string out;
  std::string err;
};

/// Runs `command` with /bin/sh in `folder`, for at most `seconds`.
[[nodiscard]] inline ShellOutcome run_shell(std::filesystem::path const& folder, std::string const& command,
                                            int seconds = 60) {
  auto const script = folder / "command.sh";
  std::ofstream(script) << command << '\n';
  std::string const line = "cd '" + folder.string() + "' && timeout -k 5 " + std::to_string(seconds) +
                           " sh ./command.sh >command.out 2>command.err </dev/null";
  int const status = std::system(line.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), read_file(folder / "command.out"),
          read_file(folder / "command.err")};
}

}  // namespace ddp::testing
