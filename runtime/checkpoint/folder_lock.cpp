#include "checkpoint/folder_lock.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "core/pausing_deadline.hpp"
#include "ddp/core/error.hpp"
#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"

namespace ddp {
namespace {

namespace fs = std::filesystem;

constexpr char const* kLockFile = ".lock";
constexpr std::chrono::milliseconds kBetweenTries{20};

// A file, since a folder could be locked by all who can read it, not only by those who may write to it.
FileDescriptor open_lock_file(fs::path const& path) {
  FileDescriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600));
  if (!file) {
    throw_errno(text("opening ", path.string(),
                     ", the lock of the job that writes here (if another user's job made it, ",
                     "and has ended, remove it)"),
                errno);
  }
  return file;
}

// Users who may write to the folder may lock the file. They cannot have put another file of this user in its
// place, which would have content, or a second name.
void share_lock_file(int file, fs::path const& path, struct stat const& folder) {
  struct stat status {};
  if (::fstat(file, &status) != 0) throw_errno(text("looking at ", path.string()), errno);
  bool const regular = S_ISREG(status.st_mode);
  if (!regular || status.st_nlink != 1 || status.st_size != 0) {
    throw Error(ErrorCode::io,
                text(path.string(), ": expected the empty file that jobs lock, found ",
                     !regular               ? std::string("no regular file")
                     : status.st_nlink != 1 ? text("a file that has ", status.st_nlink, " names (hard links)")
                                            : text("a file of ", status.st_size, " B"),
                     "; remove it when no job writes here"));
  }
  // A job of root must not lock the folder's owner out.
  if (::geteuid() == 0 && status.st_uid == 0 && folder.st_uid != 0) {
    [[maybe_unused]] bool const given = ::fchown(file, folder.st_uid, folder.st_gid) == 0;
  }
  mode_t const others = (folder.st_mode & 0022U) * 3;  // those who may write may read, too
  if (others != 0 && status.st_uid == ::geteuid()) {
    [[maybe_unused]] bool const shared =
        ::fchown(file, static_cast<uid_t>(-1), folder.st_gid) == 0 && ::fchmod(file, 0600U | others) == 0;
  }
}

void warn_of_others(fs::path const& path, struct stat const& folder) {
  bool const all = (folder.st_mode & S_IWOTH) != 0;
  // A user's own group, in which there is nobody else, is the group of most processes.
  bool const group = (folder.st_mode & S_IWGRP) != 0 && folder.st_gid != ::getegid();
  if (!all && !group) return;
  log(LogLevel::warning,
      text("checkpoints: ", all ? "all users" : text("members of group ", folder.st_gid), " may write to ",
           path.string(), ": they can replace checkpoints and end the jobs that write there. If that is not ",
           "meant: chmod ", all ? "o-w " : "g-w ", path.string()));
}

}  // namespace

FolderLock::FolderLock(fs::path const& folder, Deadline deadline)
    : file_([&] { return open_lock_file(folder / kLockFile); }) {
  struct stat of_folder {};
  if (::stat(folder.c_str(), &of_folder) != 0)
    throw_errno(text("looking at the folder ", folder.string()), errno);
  share_lock_file(file_.get(), folder / kLockFile, of_folder);
  warn_of_others(folder, of_folder);
  struct flock whole {};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  PausingDeadline timeout(deadline);
  while (::fcntl(file_.get(), F_OFD_SETLK, &whole) != 0) {
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EACCES) {  // a file system without locks
      log(LogLevel::warning, text("checkpoints: ", folder.string(), " cannot be locked (",
                                  strerrorname_np(errno), "): see to it that no other job writes there"));
      return;
    }
    if (timeout.ended()) {
      throw Error(ErrorCode::invalid_state,
                  text("another job writes checkpoints to ", folder.string(), " (locked for more than ",
                       seconds(deadline.allowed()), " s); use another folder, or end that job"));
    }
    std::this_thread::sleep_for(kBetweenTries);
  }
}

}  // namespace ddp
