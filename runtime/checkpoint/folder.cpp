#include "checkpoint/folder.hpp"

#include <algorithm>
#include <utility>

#include "checkpoint/sha256.hpp"
#include "ddp/core/ids.hpp"
#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"

namespace ddp {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kLongestManifest = (64_MiB).value;
constexpr std::size_t kReadSize = (4_MiB).value;

// Makes missing folders, from the outermost inwards.
void make_folders(fs::path const& path) {
  if (fs::is_directory(path)) return;
  if (path.has_parent_path() && path.parent_path() != path) make_folders(path.parent_path());
  static_cast<void>(DurableFolder(path));
}

bool is_temporary(fs::path const& file) {
  std::string const name = file.filename().string();
  return name.starts_with('.') && name.ends_with(kTemporarySuffix);
}

// Whether it is complete. One that cannot be looked at counts too: it is refused with a reason, not removed.
bool has_manifest(fs::path const& checkpoint) {
  std::error_code unknown;
  return fs::symlink_status(checkpoint / kManifestFile, unknown).type() != fs::file_type::not_found;
}

bool is_own_folder(fs::directory_entry const& entry) {
  std::error_code unknown;
  return entry.symlink_status(unknown).type() == fs::file_type::directory;  // no link to another
}

// What cannot be removed stays, as in a folder of another user: nothing depends on it.
bool succeeded(char const* what, fs::path const& path, std::error_code const& failure) {
  if (failure) log(LogLevel::warning, text("checkpoints: ", what, path.string(), ": ", failure.message()));
  return !failure;
}

void remove_temporaries(fs::path const& folder) {
  std::error_code failure;
  std::vector<fs::path> found;
  for (auto const& entry : fs::directory_iterator(folder, failure)) {
    if (is_temporary(entry.path())) found.push_back(entry.path());
  }
  static_cast<void>(succeeded("looking for unfinished files in ", folder, failure));
  for (auto const& file : found) {
    fs::remove(file, failure);
    static_cast<void>(succeeded("removing ", file, failure));
  }
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

// What is wrong with a file of a checkpoint, by its record: its size, or its SHA-256. "" if nothing.
std::string damage(std::filesystem::path const& checkpoint, CheckpointFileRecord const& record) {
  SequentialReader file(checkpoint / record.name);
  if (file.size() != record.bytes) {
    return text(record.name, " has ", file.size(), " B, ", record.bytes, " were written");
  }
  if (std::string const found = hash_of(file); found != record.sha256) {
    return text(record.name, " has the SHA-256 ", found, ", ", record.sha256, " was written");
  }
  return {};
}

}  // namespace

CheckpointFolder::CheckpointFolder(fs::path path, Deadline deadline) : path_(std::move(path)) {
  as_io_errors([&] {
    make_folders(path_);
    lock_ = std::make_unique<FolderLock>(path_, deadline);
  });
  clean();
}

// Removes checkpoints without a manifest, and temporary files: nobody is left to finish them.
void CheckpointFolder::clean() {
  std::vector<fs::path> stale;
  remove_temporaries(path_);
  as_io_errors([&] {
    for (auto const& entry : fs::directory_iterator(path_)) {
      if (!parse_checkpoint_name(entry.path().filename().string()) || !is_own_folder(entry)) continue;
      if (has_manifest(entry.path())) {
        remove_temporaries(entry.path());
      } else {
        stale.push_back(entry.path());
      }
    }
  });
  for (auto const& folder : stale) {
    std::error_code failure;
    fs::remove_all(folder, failure);
    if (!succeeded("removing ", folder, failure)) continue;
    log(LogLevel::info, text("checkpoints: removed ", folder.string(), ", which was never completed"));
  }
  // A writer that was killed right after writing its manifest has not moved the link.
  if (auto const names = complete(); !names.empty()) lead_to(names.front());
}

std::vector<CheckpointName> CheckpointFolder::complete() const {
  return as_io_errors([&] {
    std::vector<CheckpointName> names;
    for (auto const& entry : fs::directory_iterator(path_)) {
      auto const name = parse_checkpoint_name(entry.path().filename().string());
      if (name && has_manifest(entry.path())) names.push_back(*name);
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
    if (std::exchange(said_no_link_, true)) return;
    log(LogLevel::warning, text("checkpoints: ", error.what(), "; the newest one is ", to_string(name),
                                ", and later ones have higher numbers"));
  }
}

void CheckpointFolder::prune(std::size_t keep) noexcept {
  try {
    std::size_t good = 0;
    for (CheckpointName const& each : complete()) {
      if (!refused_.contains(each.number) && good++ < keep) continue;
      fs::path const checkpoint = path_ / to_string(each);
      // The manifest first: a checkpoint is complete while it has one. Of a link only the link goes.
      if (!fs::is_symlink(checkpoint)) fs::remove(checkpoint / kManifestFile);
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

std::string hash_of(SequentialReader& file, std::atomic<bool> const* cancelled) {
  Sha256 hash;
  std::vector<std::byte> piece(std::min(kReadSize, file.size()));
  for (std::size_t left = file.size(); left > 0;) {
    if (cancelled != nullptr && cancelled->load()) {
      throw Error(ErrorCode::aborted, "the reading of a file for its checksum was given up");
    }
    auto const part = std::span(piece).first(std::min(left, piece.size()));
    file.read(part);
    hash.add(part);
    left -= part.size();
  }
  return hash.finish();
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
