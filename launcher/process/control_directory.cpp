#include "launcher/process/control_directory.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iomanip>
#include <memory>
#include <string_view>

#include "core/system/own_file.hpp"
#include "ddp/core/error.hpp"
#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"
#include "launcher/process/environment.hpp"
#include "launcher/process/exit_code.hpp"

namespace ddp::launcher {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "ddp-";
constexpr int kDigits = 16;

/// With a longer parent folder, the path of the control socket would be too long for a socket.
constexpr std::size_t kLongestParent =
    sizeof(sockaddr_un::sun_path) - 1 - std::string_view("/ddp-0123456789abcdef/control").size();

/// The folder of `path`, or one above it, in which any user could replace our folder or one on the way to it.
/// Empty: none.
fs::path folder_of_everybody(fs::path const& path) {
  std::error_code unknown;
  for (fs::path const& way : {path, fs::canonical(path, unknown)}) {
    for (fs::path folder = way; !folder.empty(); folder = folder.parent_path()) {
      struct stat status {};
      if (stat(folder.c_str(), &status) == 0 && is_everybodys(status)) return folder;
      if (folder == folder.root_path()) break;
    }
  }
  return {};
}

/// Absolute, since ranks may change their directory before they connect.
std::string parent_folder() {
  char const* const temporary = std::getenv("TMPDIR");
  std::string const wanted =
      fs::absolute(temporary != nullptr && temporary[0] != '\0' ? temporary : "/tmp").string();
  if (wanted.size() <= kLongestParent) return wanted;
  // /run/user comes second: it is emptied when its user logs out, even if jobs go on.
  for (std::string const& other : {std::string("/tmp"), text("/run/user/", geteuid())}) {
    if (access(other.c_str(), W_OK | X_OK) != 0 || !folder_of_everybody(other).empty()) continue;
    log(LogLevel::info, text("ddp-launch: the control directory is made in ", other,
                             ": the path of a socket in TMPDIR (", wanted, ") would be too long"));
    return other;
  }
  return wanted;  // making the socket fails with the reason
}

bool is_name_of_ours(std::string_view name) {
  return name.starts_with(kPrefix) && name.size() == kPrefix.size() + kDigits &&
         name.find_first_not_of("0123456789abcdef", kPrefix.size()) == std::string_view::npos;
}

/// The launcher keeps it locked. Its name has the host's name, since other hosts of a network file system may
/// not see the lock.
std::string owner_file() { return "owner." + host_name(); }

/// Locks the file before the file gets its name, since a directory without it belongs to a launcher that is
/// still making it. Empty where the file system has no locks: then nobody takes the directory for an orphan.
FileDescriptor become_owner(int directory) {
  constexpr char const* kNew = "new";
  FileDescriptor file(openat(directory, kNew, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  bool const owner = file && flock(file.get(), LOCK_EX | LOCK_NB) == 0 &&
                     renameat(directory, kNew, directory, owner_file().c_str()) == 0;
  return owner ? std::move(file) : FileDescriptor{};
}

bool is_orphan(int parent, std::string const& name) {
  PrivateFolder const directory = open_private_folder(parent, name);
  if (!directory.handle) return false;
  FileDescriptor const owner(
      openat(directory.handle.get(), owner_file().c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  return owner && flock(owner.get(), LOCK_EX | LOCK_NB) == 0;
}

/// Removes directories of this user whose launcher and guard are both gone.
void remove_orphans(std::string const& parent) {
  std::unique_ptr<DIR, int (*)(DIR*)> const entries(opendir(parent.c_str()), &closedir);
  if (!entries) return;
  while (dirent const* entry = readdir(entries.get())) {
    if (!is_name_of_ours(entry->d_name) || !is_orphan(dirfd(entries.get()), entry->d_name)) continue;
    std::string const path = text(parent, "/", entry->d_name);
    std::error_code problem;
    fs::remove_all(path, problem);
    log(LogLevel::info, text("ddp-launch: ", path, ", left by a launcher that was killed, ",
                             problem ? "cannot be removed: " + problem.message() : "was removed"));
  }
}

}  // namespace

ControlDirectory::ControlDirectory() {
  std::uint64_t number = 0;
  if (getrandom(&number, sizeof number, 0) != static_cast<ssize_t>(sizeof number)) {
    throw_errno("asking for a random number", errno);
  }
  std::string const parent = parent_folder();
  if (fs::path const unsafe = folder_of_everybody(parent); !unsafe.empty()) {
    throw ExitError(exit_code::kCannotCreate,
                    text("the control directory would be made in ", parent,
                         " (TMPDIR), where others could replace it: every user "
                         "may write to ",
                         unsafe.string(),
                         ", which is not sticky; expected TMPDIR to name a folder of your own, or chmod +t ",
                         unsafe.string()));
  }
  path_ = text(parent, "/", kPrefix, std::hex, std::setw(kDigits), std::setfill('0'), number);
}

void ControlDirectory::make() {
  if (mkdir(path_.c_str(), 0700) != 0) {
    throw ExitError(exit_code::kCannotCreate, text("cannot make the control directory ", path_, ": ",
                                                   std::strerror(errno), "; TMPDIR chooses another place"));
  }
  made_ = true;
  PrivateFolder const folder = open_private_folder(AT_FDCWD, path_);
  if (!folder.handle) {
    throw ExitError(exit_code::kCannotCreate,
                    text("the control directory ", path_, ": expected ", kPrivateFolder, ", found ",
                         folder.found, "; TMPDIR chooses another place"));
  }
  lock_ = become_owner(folder.handle.get());
  remove_orphans(fs::path(path_).parent_path().string());
}

void ControlDirectory::remove() noexcept {
  if (!made_) return;
  std::error_code ignored;
  fs::remove_all(path_, ignored);
  lock_.reset();
  made_ = false;
}

}  // namespace ddp::launcher
