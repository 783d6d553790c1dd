#include "checkpoint/snapshot.hpp"

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "checkpoint/sha256.hpp"
#include "core/system/thread_without_signals.hpp"
#include "ddp/core/text.hpp"
#include "ddp/device/memory.hpp"
#include "ddp/device/tensor_ops.hpp"

namespace ddp {
namespace {

constexpr std::size_t kHashSize = (8_MiB).value;

std::string hash_of(std::string const& header, std::span<std::byte const> data,
                    std::atomic<bool> const& cancelled) {
  Sha256 hash;
  hash.add(std::as_bytes(std::span(header)));
  for (std::size_t at = 0; at < data.size() && !cancelled; at += kHashSize) {
    hash.add(data.subspan(at, std::min(kHashSize, data.size() - at)));
  }
  return hash.finish();
}

using ByName = std::unordered_map<std::string_view, SafetensorsEntry const*>;

ByName by_name(std::span<SafetensorsEntry const> entries) {
  ByName found;
  for (SafetensorsEntry const& each : entries) found.emplace(each.name, &each);
  return found;
}

SafetensorsEntry const* find(ByName const& entries, std::string const& name) {
  auto const found = entries.find(name);
  return found == entries.end() ? nullptr : found->second;
}

}  // namespace

CheckpointSnapshot::CheckpointSnapshot(std::string what, std::vector<NamedTensor> tensors, bool holds,
                                       std::vector<ShardedTensor> sharded)
    : what_(std::move(what)), tensors_(std::move(tensors)), divided_(!sharded.empty()) {
  for (NamedTensor const& each : tensors_) {
    TensorView const& value = each.value;
    sharded.push_back({each.name, value.shape, value.dtype, {}});
    if (holds) sharded.back().parts.push_back({0, value});
  }
  // Large elements first, so that each tensor is aligned for its type; then by name, so that the file is the
  // same whatever is divided.
  std::ranges::sort(sharded, [](ShardedTensor const& a, ShardedTensor const& b) {
    return std::pair(size_of(b.dtype), std::string_view(a.name)) <
           std::pair(size_of(a.dtype), std::string_view(b.name));
  });
  std::size_t end = 0;
  std::size_t held = 0;
  for (ShardedTensor& each : sharded) {
    std::ranges::sort(each.parts, {}, &ShardedTensor::Part::offset);
    for (ShardedTensor::Part const& part : each.parts) {
      if (part.elements.count() == 0) continue;
      pieces_.push_back({end + part.offset * size_of(each.dtype), held, part.elements});
      held += part.elements.bytes();
    }
    std::size_t const begin = std::exchange(end, end + each.shape.count() * size_of(each.dtype));
    entries_.push_back({std::move(each.name), each.dtype, each.shape, begin, end});
  }
  static_cast<void>(safetensors_header(entries_, {}));  // refuses bad names now, not later in a thread
  if (held > 0) memory_ = pinned_zeros(Shape{held}, DType::u8);
}

std::span<std::byte> CheckpointSnapshot::bytes() const {
  return {static_cast<std::byte*>(memory_.view().data), pieces_.empty() ? 0 : memory_.view().bytes()};
}

std::span<std::byte> CheckpointSnapshot::copy_of(Piece const& piece) const {
  return bytes().subspan(piece.memory, piece.value.bytes());
}

void CheckpointSnapshot::take(Stream& stream) const {
  for (Piece const& each : pieces_) {
    copy_elements({copy_of(each).data(), each.value.shape, each.value.dtype, Device{}}, each.value, stream);
  }
}

void CheckpointSnapshot::give_back(Stream& stream) const {
  for (Piece const& each : pieces_) {
    copy_elements(each.value, {copy_of(each).data(), each.value.shape, each.value.dtype, Device{}}, stream);
  }
}

CheckpointFileRecord CheckpointSnapshot::write(DurableFolder const& folder, std::string const& name,
                                               std::map<std::string, std::string> const& metadata,
                                               std::atomic<bool> const& cancelled) const {
  std::string const header = safetensors_header(entries_, metadata);
  auto hash = call_without_signals([&] { return hash_of(header, bytes(), cancelled); });
  DurableFile file(folder, name);
  file.write(std::as_bytes(std::span(header)), &cancelled);
  file.write(bytes(), &cancelled);
  file.publish();
  std::string const digest = hash.get();
  if (cancelled) throw Error(ErrorCode::aborted, text("writing ", name, " was given up"));
  return {name, header.size() + bytes().size(), digest};
}

void CheckpointSnapshot::write_header(DurableFile& file,
                                      std::map<std::string, std::string> const& metadata) const {
  std::string const header = safetensors_header(entries_, metadata);
  // The size first: a client of NFS that takes the header for the file's end fills its page with zeros, and
  // may write them over what others have written.
  file.resize(header.size() + entries_.back().end);
  file.write(std::as_bytes(std::span(header)));
}

void CheckpointSnapshot::write_pieces(UnfinishedFile& file,
                                      std::map<std::string, std::string> const& metadata,
                                      std::atomic<bool> const& cancelled) const {
  std::size_t const header = safetensors_header(entries_, metadata).size();
  for (Piece const& each : pieces_) file.write_at(header + each.begin, copy_of(each), &cancelled);
  file.flush();
}

void CheckpointSnapshot::read(std::filesystem::path const& folder, CheckpointFileRecord const& record) const {
  auto const path = folder / record.name;
  SequentialReader file(path);
  Sha256 hash;
  auto const read = [&](std::span<std::byte> to) {
    file.read(to);
    hash.add(to);
  };
  std::string length(kSafetensorsLength, '\0');
  read(std::as_writable_bytes(std::span(length)));
  std::string header(std::min(safetensors_header_length(length), file.size() - length.size()), '\0');
  read(std::as_writable_bytes(std::span(header)));
  auto const found = parse_safetensors_header(header, file.size() - length.size() - header.size());
  compare(path, found);
  std::vector<std::byte> others;  // elements that this rank has no part of, a few at a time
  auto const pass = [&](std::size_t count) {
    if (count > 0) others.resize(kHashSize);
    for (; count > 0; count -= std::min(count, kHashSize)) {
      read(std::span(others).first(std::min(count, kHashSize)));
    }
  };
  ByName const own = by_name(entries_);
  for (SafetensorsEntry const& entry : found) {
    auto const* const mine = find(own, entry.name);
    std::size_t at = mine->begin;
    auto piece = std::ranges::lower_bound(pieces_, at, {}, &Piece::begin);
    for (; piece != pieces_.end() && piece->begin < mine->end; ++piece) {
      pass(piece->begin - at);
      read(copy_of(*piece));
      at = piece->begin + piece->value.bytes();
    }
    pass(mine->end - at);
  }
  if (std::string const now = hash.finish(); now != record.sha256) {
    throw Error(ErrorCode::io, text(path.string(), " has the SHA-256 ", now, ", ", record.sha256,
                                    " was written: it changed while it was read"));
  }
}

void CheckpointSnapshot::compare(std::filesystem::path const& file,
                                 std::span<SafetensorsEntry const> found) const {
  auto const refuse = [&](std::string const& difference) {
    throw Error(ErrorCode::mismatch,
                text("checkpoint ", file.string(), ": ", what_, " tensor ", difference,
                     ". It is that of another model; start with the same options, or use another folder"));
  };
  ByName const others = by_name(found);
  for (SafetensorsEntry const& mine : entries_) {
    auto const* const other = find(others, mine.name);
    if (other == nullptr) {
      refuse(text("\"", mine.name, "\" is expected, ", mine.dtype, mine.shape, ", and is not in it"));
    }
    if (other->dtype != mine.dtype || other->shape != mine.shape) {
      refuse(text("\"", mine.name, "\" is expected to be ", mine.dtype, mine.shape, ", found ", other->dtype,
                  other->shape));
    }
  }
  ByName const own = by_name(entries_);
  for (SafetensorsEntry const& other : found) {
    if (find(own, other.name) == nullptr) {
      refuse(text("\"", other.name, "\" is in it, ", other.dtype, other.shape, ", and not expected"));
    }
  }
}

}  // namespace ddp
