#include "launcher/output/log_directory.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>

#include "ddp/core/text.hpp"
#include "launcher/process/exit_code.hpp"

namespace ddp::launcher {
namespace {

constexpr mode_t kModeOfFolders = 0775;

[[noreturn]] void refuse_folder(std::string const& reason) {
  throw ExitError(exit_code::kCannotCreate, reason);
}

/// Why files in such a folder could be led elsewhere.
std::optional<std::string> objection(struct stat const& folder, std::string const& path) {
  if (folder.st_uid != geteuid() && folder.st_uid != 0) {
    return text("it belongs to user ", folder.st_uid, ", and this is user ", geteuid(),
                ": choose a folder of your own, or a new one inside, such as ", path, "/logs");
  }
  if ((folder.st_mode & S_IWOTH) != 0 && (folder.st_mode & S_ISVTX) == 0) {
    return text("every user may write to it: chmod o-w ", path, ", or choose a new folder inside, such as ",
                path, "/logs");
  }
  return std::nullopt;
}

}  // namespace

LogDirectory::LogDirectory(std::string const& path) : path_(path) {
  // A slash at the end would follow a link.
  std::string const name = path.substr(0, path.find_last_not_of('/') + 1);
  std::filesystem::path const folder = name.empty() ? "/" : name;
  std::error_code ignored;  // what is wrong above shows in what follows
  if (folder.has_parent_path()) std::filesystem::create_directories(folder.parent_path(), ignored);
  bool const made = mkdir(folder.c_str(), kModeOfFolders) == 0;
  if (!made && errno != EEXIST) refuse_folder(std::strerror(errno));
  folder_ = FileDescriptor(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!folder_) {
    int const problem = errno;
    bool const link = std::filesystem::is_symlink(folder, ignored);
    refuse_folder(link ? "it is a symbolic link: name the folder that it leads to" : std::strerror(problem));
  }
  struct stat status {};
  if (fstat(folder_.get(), &status) != 0) refuse_folder(std::strerror(errno));
  // What was made just now may belong to whom the file server takes root for.
  if (auto const problem = made ? std::nullopt : objection(status, path_)) refuse_folder(*problem);
  if (faccessat(folder_.get(), ".", W_OK | X_OK, AT_EACCESS) != 0) refuse_folder(std::strerror(errno));
  owner_ = made ? status.st_uid : geteuid();
}

OwnFile LogDirectory::open(std::string const& name, bool append) const {
  return open_own_file(folder_.get(), name, append, owner_);
}

}  // namespace ddp::launcher
