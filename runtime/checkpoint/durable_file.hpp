// Files that are there whole or not at all, even after a power failure.
#pragma once

#include <atomic>
#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "core/system/file_descriptor.hpp"

namespace ddp {

/// How names of unfinished files end. They are ".NAME.PID.tmp".
inline constexpr std::string_view kTemporarySuffix = ".tmp";

/// An open folder: files are made in this folder even if a link replaces its path. All functions of this
/// header throw Error(io) naming file and reason.
class DurableFolder {
 public:
  /// Makes it durably if it is not there already. A link is not followed.
  explicit DurableFolder(std::filesystem::path path);
  [[nodiscard]] std::filesystem::path const& path() const noexcept { return path_; }
  [[nodiscard]] int handle() const noexcept { return handle_.get(); }

 private:
  std::filesystem::path path_;
  FileDescriptor handle_;
};

/// A file that is written under a temporary name beside its place, and gets its own name once it is on the
/// disk. The temporary file is always new: in a folder that others may write to, its name may be their link.
class DurableFile {
 public:
  /// `folder` must outlive it.
  DurableFile(DurableFolder const& folder, std::string name);
  /// Where it is until publish(), in the same folder.
  [[nodiscard]] std::string const& temporary() const noexcept { return temporary_; }
  /// Removes the temporary file unless it was published.
  ~DurableFile();
  DurableFile(DurableFile const&) = delete;
  DurableFile& operator=(DurableFile const&) = delete;

  /// Makes it so long; what is not written is 0.
  void resize(std::size_t bytes);
  /// Goes on behind what is written, and lets the disk begin at once. Gives up with Error(aborted) soon after
  /// `cancelled`.
  void write(std::span<std::byte const> bytes, std::atomic<bool> const* cancelled = nullptr);
  /// fsync, rename, fsync of the folder.
  void publish();

 private:
  DurableFolder const& folder_;
  std::string name_;
  std::string temporary_;
  std::string path_;  // for messages
  FileDescriptor file_;
  std::size_t written_ = 0;
  bool published_ = false;
};

/// An unfinished DurableFile, perhaps another process's, of which several write parts.
class UnfinishedFile {
 public:
  /// `temporary`: DurableFile::temporary() of a file in `folder`. A link is not followed.
  UnfinishedFile(DurableFolder const& folder, std::string const& temporary);
  /// As DurableFile::write(), from byte `offset` on.
  void write_at(std::size_t offset, std::span<std::byte const> bytes, std::atomic<bool> const* cancelled);
  /// fsync and close: called once, last.
  void flush();

 private:
  std::string path_;  // for messages
  FileDescriptor file_;
};

/// Makes `link` lead to `target`, atomically if it led elsewhere.
void replace_link(std::filesystem::path const& link, std::string const& target);

/// Reads a regular file from its beginning. Waits for no writer of a FIFO. Throws Error(io),
/// Error(not_found).
class SequentialReader {
 public:
  explicit SequentialReader(std::filesystem::path path);
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  /// Fills `bytes` with what comes next; throws if the file ends before.
  void read(std::span<std::byte> bytes);

 private:
  std::filesystem::path path_;
  FileDescriptor file_;
  std::size_t size_ = 0;
};

}  // namespace ddp
