#include "launcher/output/log_directory.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <string_view>

#include "ddp/core/ids.hpp"
#include "ddp/core/text.hpp"
#include "launcher/process/exit_code.hpp"
#include "observe/flight_json.hpp"

namespace ddp::launcher {
namespace {

constexpr mode_t kModeOfFolders = 0775;

[[noreturn]] void refuse_folder(std::string const& reason) {
  throw ExitError(exit_code::kCannotCreate, reason);
}

/// Why other users could redirect files in such a folder; nullopt if they could not.
std::optional<std::string> objection(struct stat const& folder, std::string const& path) {
  if (folder.st_uid != geteuid() && folder.st_uid != 0) {
    return text("it belongs to user ", folder.st_uid, ", and this is user ", geteuid(),
                ": choose a folder of your own, or a new one inside, such as ", path, "/logs");
  }
  if (is_everybodys(folder)) {
    return text("every user may write to it: chmod o-w ", path, ", or choose a new folder inside, such as ",
                path, "/logs");
  }
  return std::nullopt;
}

/// A file of ddp-launch that a job of `ranks` ranks does not overwrite.
bool is_stale(std::string const& name, int ranks, bool by_mpirun) {
  if (name == "mpirun.out" || name == "mpirun.err") return !by_mpirun;
  constexpr std::string_view kRank = "rank";
  int number = -1;
  if (!name.starts_with(kRank)) return false;
  auto const [end, problem] = std::from_chars(name.data() + kRank.size(), name.data() + name.size(), number);
  if (problem != std::errc{} || number < 0) return false;
  Rank const rank{number};
  if (name == flight_file_name(rank)) return true;
  return number >= ranks && (name == text("rank", rank, ".out") || name == text("rank", rank, ".err"));
}

}  // namespace

LogDirectory::LogDirectory(std::string const& path) : path_(path) {
  // A slash at the end would follow a link.
  std::string const name = path.substr(0, path.find_last_not_of('/') + 1);
  std::filesystem::path const folder = name.empty() ? "/" : name;
  std::error_code no_parent;
  if (folder.has_parent_path()) std::filesystem::create_directories(folder.parent_path(), no_parent);
  bool const made = mkdir(folder.c_str(), kModeOfFolders) == 0;
  if (!made && errno != EEXIST) {
    std::string const reason = std::strerror(errno);
    refuse_folder(no_parent ? text(folder.parent_path().string(), ": ", no_parent.message()) : reason);
  }
  folder_ = FileDescriptor(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!folder_) {
    int const problem = errno;
    std::error_code ignored;
    bool const link = std::filesystem::is_symlink(folder, ignored);
    refuse_folder(link ? "it is a symbolic link: name the folder that it leads to" : std::strerror(problem));
  }
  struct stat status {};
  if (fstat(folder_.get(), &status) != 0) refuse_folder(std::strerror(errno));
  // A folder made just now may belong to the user to whom the file server maps root.
  if (auto const problem = made ? std::nullopt : objection(status, path_)) refuse_folder(*problem);
  if (faccessat(folder_.get(), ".", W_OK | X_OK, AT_EACCESS) != 0) refuse_folder(std::strerror(errno));
  owner_ = made ? status.st_uid : geteuid();
}

OwnFile LogDirectory::open(std::string const& name, bool append) const {
  return open_own_file(folder_.get(), name, append, owner_);
}

void LogDirectory::remove_stale(int ranks, bool by_mpirun) const {
  int const again = openat(folder_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  std::unique_ptr<DIR, int (*)(DIR*)> const entries(again < 0 ? nullptr : fdopendir(again), &closedir);
  if (!entries) return;
  while (dirent const* entry = readdir(entries.get())) {
    struct stat status {};
    bool const ours = is_stale(entry->d_name, ranks, by_mpirun) &&
                      fstatat(folder_.get(), entry->d_name, &status, AT_SYMLINK_NOFOLLOW) == 0 &&
                      S_ISREG(status.st_mode) && status.st_uid == geteuid();
    if (ours) unlinkat(folder_.get(), entry->d_name, 0);
  }
}

}  // namespace ddp::launcher
