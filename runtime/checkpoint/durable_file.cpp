#include "checkpoint/durable_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "ddp/core/error.hpp"
#include "ddp/core/ids.hpp"
#include "ddp/core/text.hpp"

namespace ddp {
namespace {

// How much is handed to the kernel at once; the disk is told to begin with each piece.
constexpr std::size_t kWriteSize = (8_MiB).value;

std::string temporary_for(std::string const& name) {
  return text(".", name, ".", ::getpid(), kTemporarySuffix);
}

// Flushes a folder's entries to the disk.
void flush(int folder, std::filesystem::path const& path) {
  // EINVAL: a file system that cannot flush folders.
  if (::fsync(folder) != 0 && errno != EINVAL) {
    throw_errno(text("flushing the folder ", path.string(), " to the disk"), errno);
  }
}

FileDescriptor open_folder(std::filesystem::path const& path, int how) {
  FileDescriptor opened(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | how));
  if (!opened) throw_errno(text("opening the folder ", path.string()), errno);
  return opened;
}

void write_file(int file, std::string const& path, std::size_t offset, std::span<std::byte const> bytes,
                std::atomic<bool> const* cancelled) {
  while (!bytes.empty()) {
    if (cancelled != nullptr && cancelled->load()) {
      throw Error(ErrorCode::aborted, text("writing ", path, " was given up"));
    }
    auto const at = static_cast<off_t>(offset);
    ssize_t const count = ::pwrite(file, bytes.data(), std::min(bytes.size(), kWriteSize), at);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw_errno(text("writing ", path, " behind byte ", offset), errno);
    // This only starts writing; fsync() reports what goes wrong.
    ::sync_file_range(file, at, count, SYNC_FILE_RANGE_WRITE);
    offset += static_cast<std::size_t>(count);
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
}

void flush_and_close(FileDescriptor& file, std::string const& path) {
  if (::fsync(file.get()) != 0) throw_errno(text("flushing ", path, " to the disk"), errno);
  // A file system that reports late (NFS) may fail only here.
  if (::close(file.release()) != 0) throw_errno(text("closing ", path), errno);
}

}  // namespace

DurableFolder::DurableFolder(std::filesystem::path path) : path_(std::move(path)) {
  if (::mkdir(path_.c_str(), 0777) != 0 && errno != EEXIST) {
    throw_errno(text("making the folder ", path_.string()), errno);
  }
  handle_ = open_folder(path_, O_NOFOLLOW);
  auto const parent = path_.has_parent_path() ? path_.parent_path() : std::filesystem::path(".");
  flush(open_folder(parent, 0).get(), parent);
}

DurableFile::DurableFile(DurableFolder const& folder, std::string name)
    : folder_(folder),
      name_(std::move(name)),
      temporary_(temporary_for(name_)),
      path_((folder.path() / name_).string()) {
  ::unlinkat(folder_.handle(), temporary_.c_str(), 0);
  int const how = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
  file_ = FileDescriptor(::openat(folder_.handle(), temporary_.c_str(), how, 0666));
  if (!file_) throw_errno(text("creating ", temporary_, " in ", folder_.path().string()), errno);
}

DurableFile::~DurableFile() {
  if (!published_) ::unlinkat(folder_.handle(), temporary_.c_str(), 0);
}

void DurableFile::resize(std::size_t bytes) {
  if (::ftruncate(file_.get(), static_cast<off_t>(bytes)) != 0) {
    throw_errno(text("making ", path_, ' ', bytes, " B long"), errno);
  }
}

void DurableFile::write(std::span<std::byte const> bytes, std::atomic<bool> const* cancelled) {
  write_file(file_.get(), path_, written_, bytes, cancelled);
  written_ += bytes.size();
}

void DurableFile::publish() {
  flush_and_close(file_, path_);
  if (::renameat(folder_.handle(), temporary_.c_str(), folder_.handle(), name_.c_str()) != 0) {
    throw_errno(text("renaming ", temporary_, " to ", path_), errno);
  }
  published_ = true;
  flush(folder_.handle(), folder_.path());
}

UnfinishedFile::UnfinishedFile(DurableFolder const& folder, std::string const& temporary)
    : path_((folder.path() / temporary).string()) {
  // O_NONBLOCK: no FIFO that others have put there is waited for.
  int const how = O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
  file_ = FileDescriptor(::openat(folder.handle(), temporary.c_str(), how));
  if (!file_) {
    throw_errno(text("opening ", path_, ", which rank 0 has made (do all ranks see the same folder?)"),
                errno);
  }
}

void UnfinishedFile::write_at(std::size_t offset, std::span<std::byte const> bytes,
                              std::atomic<bool> const* cancelled) {
  write_file(file_.get(), path_, offset, bytes, cancelled);
}

void UnfinishedFile::flush() { flush_and_close(file_, path_); }

void replace_link(std::filesystem::path const& link, std::string const& target) {
  auto const temporary = link.parent_path() / temporary_for(link.filename().string());
  ::unlink(temporary.c_str());
  if (::symlink(target.c_str(), temporary.c_str()) != 0) {
    throw_errno(text("linking ", link.string(), " to ", target), errno);
  }
  if (std::rename(temporary.c_str(), link.c_str()) != 0) {
    int const reason = errno;
    ::unlink(temporary.c_str());
    throw_errno(text("linking ", link.string(), " to ", target), reason);
  }
}

SequentialReader::SequentialReader(std::filesystem::path path) : path_(std::move(path)) {
  file_ = FileDescriptor(::open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (!file_) {
    int const reason = errno;
    throw_errno(text("opening ", path_.string()), reason,
                reason == ENOENT ? ErrorCode::not_found : ErrorCode::io);
  }
  struct stat status {};
  if (::fstat(file_.get(), &status) != 0) throw_errno(text("reading ", path_.string()), errno);
  if (!S_ISREG(status.st_mode)) throw Error(ErrorCode::io, text(path_.string(), " is no regular file"));
  size_ = static_cast<std::size_t>(status.st_size);
  ::posix_fadvise(file_.get(), 0, 0, POSIX_FADV_SEQUENTIAL);
}

void SequentialReader::read(std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    ssize_t const count = ::read(file_.get(), bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw_errno(text("reading ", path_.string()), errno);
    if (count == 0) throw Error(ErrorCode::io, text(path_.string(), " ends too early"));
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
}

}  // namespace ddp
