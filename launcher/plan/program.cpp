#include "launcher/plan/program.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <sstream>

#include "ddp/core/text.hpp"
#include "launcher/process/environment.hpp"
#include "launcher/process/exit_code.hpp"

namespace ddp::launcher {
namespace {

/// Why this file cannot be executed; empty if it can. nullopt where there is none.
std::optional<std::string> obstacle(std::string const& path) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) {
    if (errno == ENOENT || errno == ENOTDIR) return std::nullopt;
    return std::strerror(errno);
  }
  if (S_ISDIR(status.st_mode)) return "it is a directory";
  if (!S_ISREG(status.st_mode)) return "it is no regular file";
  if (faccessat(AT_FDCWD, path.c_str(), X_OK, AT_EACCESS) == 0) return "";
  return errno == EACCES ? "no permission to execute it (chmod +x?)" : std::strerror(errno);
}

[[noreturn]] void refuse_to_execute(std::string const& path, std::string const& reason) {
  throw ExitError(exit_code::kNotExecutable, text("cannot execute ", path, ": ", reason));
}

}  // namespace

std::string resolve_program(std::string const& name, std::string const& search_path) {
  if (name.find('/') != std::string::npos) {
    auto const why_not = obstacle(name);
    if (!why_not) throw ExitError(exit_code::kNotFound, text("program not found: ", name));
    if (!why_not->empty()) refuse_to_execute(name, *why_not);
    return name;
  }
  std::string unusable;
  std::string reason;
  Classic<std::istringstream> directories(search_path);
  for (std::string directory; std::getline(directories, directory, ':');) {
    std::string const path = (directory.empty() ? std::string(".") : directory) + "/" + name;
    auto const why_not = obstacle(path);
    if (!why_not) continue;
    if (why_not->empty()) return path;
    if (!unusable.empty()) continue;
    unusable = path;
    reason = *why_not;
  }
  if (!unusable.empty()) refuse_to_execute(unusable, reason);
  bool const here = obstacle("./" + name) == "";
  throw ExitError(exit_code::kNotFound, text("program not found: no ", name, " in PATH=", search_path,
                                             here ? text("; did you mean ./", name, "?") : std::string{}));
}

std::string find_program(std::string const& name, std::string const& needed_for) try {
  return resolve_program(name, environment_variable("PATH").value_or("/usr/bin:/bin"));
} catch (ExitError const& error) {
  throw ExitError(error.exit_code(), needed_for + error.what());
}

std::vector<std::string> started_command(Options const& options) {
  std::string const& name = options.command.front();
  std::error_code ignored;
  bool const is_file = name.ends_with(".py") && std::filesystem::is_regular_file(name, ignored);
  if (!options.module && !is_file) return options.command;
  static_cast<void>(find_program("python3", text(name, " is run with python3: ")));
  std::vector<std::string> words{"python3", "-u"};
  if (options.module) words.emplace_back("-m");
  words.insert(words.end(), options.command.begin(), options.command.end());
  return words;
}

}  // namespace ddp::launcher
