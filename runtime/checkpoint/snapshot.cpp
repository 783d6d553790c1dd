#include "checkpoint/snapshot.hpp"

#include <algorithm>
#include <functional>
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

CheckpointSnapshot::CheckpointSnapshot(std::string what, std::vector<NamedTensor> tensors, bool holds)
    : what_(std::move(what)), tensors_(std::move(tensors)) {
  // Large elements first, so that each tensor is aligned for its type.
  std::ranges::stable_sort(tensors_, std::greater{},
                           [](auto const& each) { return size_of(each.value.dtype); });
  std::size_t end = 0;
  for (NamedTensor const& each : tensors_) {
    TensorView const& value = each.value;
    entries_.push_back({each.name, value.dtype, value.shape, end, end + value.bytes()});
    end += value.bytes();
  }
  static_cast<void>(safetensors_header(entries_, {}));  // refuses bad names now, not later in a thread
  if (holds) memory_ = pinned_zeros(Shape{end}, DType::u8);
}

std::span<std::byte> CheckpointSnapshot::bytes() const {
  return {static_cast<std::byte*>(memory_.view().data), memory_.view().bytes()};
}

TensorView CheckpointSnapshot::copy_of(std::size_t tensor) const {
  SafetensorsEntry const& entry = entries_[tensor];
  return {bytes().data() + entry.begin, entry.shape, entry.dtype, Device{}};
}

void CheckpointSnapshot::take(Stream& stream) const {
  for (std::size_t i = 0; i < tensors_.size(); ++i) copy_elements(copy_of(i), tensors_[i].value, stream);
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
  ByName const own = by_name(entries_);
  for (SafetensorsEntry const& entry : found) {
    auto const* const mine = find(own, entry.name);
    read(bytes().subspan(mine->begin, mine->end - mine->begin));
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
