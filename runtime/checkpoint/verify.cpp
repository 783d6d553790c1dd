#include "checkpoint/verify.hpp"

#include <algorithm>
#include <span>
#include <vector>

#include "checkpoint/durable_file.hpp"
#include "checkpoint/sha256.hpp"
#include "ddp/core/ids.hpp"
#include "ddp/core/text.hpp"

namespace ddp {
namespace {

constexpr std::size_t kReadSize = (4_MiB).value;

}  // namespace

std::string damage(std::filesystem::path const& checkpoint, CheckpointFileRecord const& record) {
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

}  // namespace ddp
