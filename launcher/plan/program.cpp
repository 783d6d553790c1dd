#include "launcher/plan/program.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "ddp/core/text.hpp"
#include "launcher/process/exit_code.hpp"

namespace ddp::launcher {
namespace {

enum class Found { nothing, executable, not_executable };

Found look(std::string const& path, std::string& reason) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) {
    if (errno == ENOENT || errno == ENOTDIR) return Found::nothing;
    reason = std::strerror(errno);
    return Found::not_executable;
  }
  if (S_ISDIR(status.st_mode)) {
    reason = "it is a directory";
    return Found::not_executable;
  }
  if (!S_ISREG(status.st_mode)) {
    reason = "it is no regular file";
    return Found::not_executable;
  }
  if (faccessat(AT_FDCWD, path.c_str(), X_OK, AT_EACCESS) != 0) {
    reason = errno == EACCES ? "no permission to execute it (chmod +x?)" : std::strerror(errno);
    return Found::not_executable;
  }
  return Found::executable;
}

[[noreturn]] void refuse_to_execute(std::string const& path, std::string const& reason) {
  throw ExitError(exit_code::kNotExecutable, text("cannot execute ", path, ": ", reason));
}

}  // namespace

std::string resolve_program(std::string const& name, std::string const& search_path) {
  std::string reason;
  if (name.find('/') != std::string::npos) {
    switch (look(name, reason)) {
      case Found::executable:
        return name;
      case Found::not_executable:
        refuse_to_execute(name, reason);
      case Found::nothing:
        break;
    }
    throw ExitError(exit_code::kNotFound, text("program not found: ", name));
  }
  std::string unusable;
  std::istringstream directories(search_path);
  for (std::string directory; std::getline(directories, directory, ':');) {
    std::string const path = (directory.empty() ? std::string(".") : directory) + "/" + name;
    std::string why;
    switch (look(path, why)) {
      case Found::executable:
        return path;
      case Found::not_executable:
        if (unusable.empty()) {
          unusable = path;
          reason = why;
        }
        break;
      case Found::nothing:
        break;
    }
  }
  if (!unusable.empty()) refuse_to_execute(unusable, reason);
  bool const here = look("./" + name, reason) == Found::executable;
  throw ExitError(exit_code::kNotFound, text("program not found: no ", name, " in PATH=", search_path,
                                             here ? text("; did you mean ./", name, "?") : std::string{}));
}

std::string find_program(std::string const& name) {
  char const* const search_path = std::getenv("PATH");
  return resolve_program(name, search_path != nullptr ? search_path : "/usr/bin:/bin");
}

}  // namespace ddp::launcher
