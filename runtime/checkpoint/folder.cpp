#include "checkpoint/folder.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>
#include <utility>

#include "checkpoint/durable_file.hpp"
#include "checkpoint/sha256.hpp"
#include "core/patience.hpp"
#include "ddp/core/ids.hpp"
#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"

namespace ddp {
namespace {

namespace fs = std::filesystem;

constexpr char const* kLockFile = ".lock";
constexpr std::size_t kReadSize = (4_MiB).value;
constexpr std::size_t kLongestManifest = (64_MiB).value;
constexpr std::chrono::milliseconds kBetweenTries{20};

// Makes missing folders, from the outermost inwards.
void make_folders(fs::path const& path) {
  if (fs::is_directory(path)) return;
  if (path.has_parent_path() && path.parent_path() != path) make_folders(path.parent_path());
  make_durable_folder(path);
}

bool is_temporary(fs::path const& file) {
  std::string const name = file.filename().string();
  return name.starts_with('.') && name.ends_with(kTemporarySuffix);
}

void remove_temporaries(fs::path const& folder) {
  std::vector<fs::path> found;
  for (auto const& entry : fs::directory_iterator(folder)) {
    if (is_temporary(entry.path())) found.push_back(entry.path());
  }
  for (auto const& file : found) fs::remove(file);
}

// A file, since a folder could be locked by all who can read it, not only by those who may write to it.
FileDescriptor open_lock_file(fs::path const& folder) {
  fs::path const path = folder / kLockFile;
  struct stat of_folder {};
  if (::stat(folder.c_str(), &of_folder) != 0)
    throw_errno(text("looking at the folder ", folder.string()), errno);
  int const how = O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
  FileDescriptor file(::open(path.c_str(), how, 0600));
  if (!file) {
    throw_errno(text("opening ", path.string(),
                     ", the lock of the job that writes here (if another user's job made it, ",
                     "and has ended, remove it)"),
                errno);
  }
  struct stat status {};
  if (::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
    throw Error(ErrorCode::io,
                text(path.string(), ": expected the file that jobs lock, found no regular file; remove it"));
  }
  // A job of root must not lock the folder's owner out.
  if (::geteuid() == 0 && status.st_uid == 0 && of_folder.st_uid != 0) {
    [[maybe_unused]] bool const given = ::fchown(file.get(), of_folder.st_uid, of_folder.st_gid) == 0;
  }
  mode_t const others = (of_folder.st_mode & 0022U) * 3;  // those who may write may read, too
  if (others != 0 && status.st_uid == ::geteuid()) {
    [[maybe_unused]] bool const shared =
        ::fchown(file.get(), static_cast<uid_t>(-1), of_folder.st_gid) == 0 &&
        ::fchmod(file.get(), 0600U | others) == 0;
  }
  return file;
}

// Errors of std::filesystem, as this library's.
template <class Action>
auto as_io_errors(Action action) {
  try {
    return action();
  } catch (fs::filesystem_error const& error) {
    throw Error(ErrorCode::io, error.what());
  }
}

// What is wrong with a file of a checkpoint, by its record; "" if nothing.
std::string damage(fs::path const& checkpoint, CheckpointFileRecord const& record) {
  SequentialReader file(checkpoint / record.name);
  if (file.size() != record.bytes) {
    return text(record.name, " has ", file.size(), " B, ", record.bytes, " were written");
  }
  Sha256 hash;
  std::vector<std::byte> piece(std::min(kReadSize, file.size()));
  for (std::size_t left = file.size(); left > 0;) {
    auto const part = std::span(piece).first(std::min(left, piece.size()));
    file.read(part);
    hash.add(part);
    left -= part.size();
  }
  if (std::string const found = hash.finish(); found != record.sha256) {
    return text(record.name, " has the SHA-256 ", found, ", ", record.sha256, " was written");
  }
  return {};
}

}  // namespace

CheckpointFolder::CheckpointFolder(fs::path path, Deadline deadline) : path_(std::move(path)) {
  as_io_errors([&] {
    make_folders(path_);
    lock(deadline);
    clean();
  });
}

void CheckpointFolder::lock(Deadline deadline) {
  lock_ = open_lock_file(path_);
  struct flock whole {};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  Patience patience(deadline);
  while (::fcntl(lock_.get(), F_OFD_SETLK, &whole) != 0) {
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EACCES) {  // a file system without locks
      log(LogLevel::warning, text("checkpoints: ", path_.string(), " cannot be locked (",
                                  strerrorname_np(errno), "): see to it that no other job writes there"));
      return;
    }
    if (patience.ended()) {
      throw Error(ErrorCode::invalid_state,
                  text("another job writes checkpoints to ", path_.string(), " (locked for more than ",
                       seconds(deadline.allowed()), " s); use another folder, or end that job"));
    }
    std::this_thread::sleep_for(kBetweenTries);
  }
}

// Removes checkpoints without a manifest, and temporary files: nobody is left to finish them.
void CheckpointFolder::clean() {
  std::vector<fs::path> stale;
  remove_temporaries(path_);
  for (auto const& entry : fs::directory_iterator(path_)) {
    if (!parse_checkpoint_name(entry.path().filename().string()) || !entry.is_directory()) continue;
    if (fs::exists(entry.path() / kManifestFile)) {
      remove_temporaries(entry.path());
    } else {
      stale.push_back(entry.path());
    }
  }
  for (auto const& folder : stale) {
    fs::remove_all(folder);
    log(LogLevel::info, text("checkpoints: removed ", folder.string(), ", which was never completed"));
  }
  // A writer that was killed right after writing its manifest has not moved the link.
  if (auto const names = complete(); !names.empty()) replace_link(path_ / "latest", to_string(names.front()));
}

std::vector<CheckpointName> CheckpointFolder::complete() const {
  return as_io_errors([&] {
    std::vector<CheckpointName> names;
    for (auto const& entry : fs::directory_iterator(path_)) {
      auto const name = parse_checkpoint_name(entry.path().filename().string());
      if (name && fs::exists(entry.path() / kManifestFile)) names.push_back(*name);
    }
    std::sort(names.begin(), names.end(), [](auto const& a, auto const& b) { return a.number > b.number; });
    return names;
  });
}

std::optional<CheckpointManifest> CheckpointFolder::newest_good(std::vector<std::string>& refused) {
  for (CheckpointName const& name : complete()) {
    fs::path const checkpoint = path_ / to_string(name);
    std::string reason;
    try {
      CheckpointManifest manifest = read_manifest(checkpoint);
      for (CheckpointFileRecord const& record : manifest.files) {
        if (reason.empty()) reason = damage(checkpoint, record);
      }
      if (reason.empty()) {
        if (!refused.empty()) lead_to(name);  // not to one that is damaged
        return manifest;
      }
    } catch (Error const& error) {
      reason = error.what();
    }
    refused_.insert(name.number);
    refused.push_back(text(to_string(name), ": ", reason));
    log(LogLevel::warning, text("checkpoint ", checkpoint.string(), " is refused: ", reason,
                                "; the one before it is looked at"));
  }
  if (refused.empty()) return std::nullopt;
  throw Error(ErrorCode::io, text("no checkpoint in ", path_.string(), " can be used: ", join(refused, "; "),
                                  ". To begin anew, use another folder, or remove them"));
}

void CheckpointFolder::lead_to(CheckpointName const& name) noexcept {
  try {
    replace_link(path_ / "latest", to_string(name));
  } catch (std::exception const& error) {
    log(LogLevel::warning,
        text("checkpoint ", to_string(name), " is complete, but has no link to it: ", error.what()));
  }
}

void CheckpointFolder::prune(std::size_t keep) noexcept {
  try {
    std::size_t good = 0;
    for (CheckpointName const& each : complete()) {
      if (!refused_.contains(each.number) && good++ < keep) continue;
      fs::path const checkpoint = path_ / to_string(each);
      fs::remove(checkpoint / kManifestFile);  // first: a checkpoint is complete as long as it has one
      fs::remove_all(checkpoint);
    }
  } catch (std::exception const& error) {
    log(LogLevel::warning, text("checkpoints: an old one cannot be removed: ", error.what()));
  }
}

void CheckpointFolder::discard(CheckpointName const& name) noexcept {
  std::error_code ignored;  // what stays is removed at the next start
  fs::remove_all(path_ / to_string(name), ignored);
}

CheckpointManifest read_manifest(fs::path const& checkpoint) {
  SequentialReader file(checkpoint / kManifestFile);
  if (file.size() > kLongestManifest) {
    throw Error(ErrorCode::io, text(kManifestFile, " has ", file.size(), " B, more than any manifest"));
  }
  std::string json(file.size(), '\0');
  file.read(std::as_writable_bytes(std::span(json)));
  CheckpointManifest manifest = parse_manifest(json);
  std::string const name = to_string(CheckpointName{manifest.number, manifest.position.step});
  if (name != checkpoint.filename()) {
    throw Error(ErrorCode::io, text(kManifestFile, " is that of ", name));
  }
  return manifest;
}

}  // namespace ddp
