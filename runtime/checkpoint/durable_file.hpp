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

/// A file that is written under a temporary name beside its place, and gets its own name once it is on the
/// disk. All functions throw Error(io) naming file and reason.
class DurableFile {
 public:
  explicit DurableFile(std::filesystem::path path);
  /// Removes the temporary file unless it was published.
  ~DurableFile();
  DurableFile(DurableFile const&) = delete;
  DurableFile& operator=(DurableFile const&) = delete;

  /// Appends, and lets the disk begin at once. Gives up with Error(aborted) soon after `cancelled`.
  void write(std::span<std::byte const> bytes, std::atomic<bool> const* cancelled = nullptr);
  /// fsync, rename, fsync of the folder.
  void publish();

 private:
  std::filesystem::path path_;
  std::filesystem::path temporary_;
  FileDescriptor file_;
  std::size_t written_ = 0;
  bool published_ = false;
};

/// Makes one folder durably, if it is not there already.
void make_durable_folder(std::filesystem::path const& folder);

/// Flushes a folder's entries to the disk.
void sync_folder(std::filesystem::path const& folder);

/// Makes `link` lead to `target`, atomically if it led elsewhere.
void replace_link(std::filesystem::path const& link, std::string const& target);

/// Reads a file from its beginning. Throws Error(io), Error(not_found).
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
