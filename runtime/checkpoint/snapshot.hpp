// A copy of tensors in host memory, on its way to a safetensors file or from one.
#pragma once

#include <atomic>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/durable_file.hpp"
#include "checkpoint/manifest.hpp"
#include "checkpoint/safetensors.hpp"
#include "ddp/checkpoint/checkpoint_tensors.hpp"
#include "ddp/core/tensor.hpp"
#include "ddp/device/stream.hpp"

namespace ddp {

/// The memory is allocated once, as one piece in the order of the file, and pinned if there are GPUs.
class CheckpointSnapshot {
 public:
  /// `what` names the tensors' kind in messages: "model". With `holds` false it has no memory for `tensors`
  /// and only describes them: their values come from another rank. Of `sharded` it has this rank's parts. The
  /// file's layout depends on neither. Throws Error(invalid_argument).
  CheckpointSnapshot(std::string what, std::vector<NamedTensor> tensors, bool holds,
                     std::vector<ShardedTensor> sharded = {});

  /// Those that every rank has.
  [[nodiscard]] std::span<NamedTensor const> tensors() const noexcept { return tensors_; }
  [[nodiscard]] bool empty() const noexcept { return entries_.empty(); }
  /// Whether several ranks write the file together.
  [[nodiscard]] bool divided() const noexcept { return divided_; }

  /// Enqueues the copies of all tensors and parts that it has memory for. They are complete once the caller
  /// has waited for the stream.
  void take(Stream& stream) const;
  /// Likewise, the other way.
  void give_back(Stream& stream) const;

  /// Writes file `name`, of which it holds everything, into `folder`; hashing runs beside it in a thread of
  /// its own.
  [[nodiscard]] CheckpointFileRecord write(DurableFolder const& folder, std::string const& name,
                                           std::map<std::string, std::string> const& metadata,
                                           std::atomic<bool> const& cancelled) const;
  /// The same for a divided file, of which write_pieces() writes the tensors: makes `file` as long as it will
  /// be, and writes the header.
  void write_header(DurableFile& file, std::map<std::string, std::string> const& metadata) const;
  /// Writes what it holds into another rank's file, for which write_header() was called with the same
  /// metadata.
  void write_pieces(UnfinishedFile& file, std::map<std::string, std::string> const& metadata,
                    std::atomic<bool> const& cancelled) const;

  /// Fills the memory from a file, which is read whole for its checksum. Throws Error(io) if it is not what
  /// the record says, Error(mismatch) if its tensors are others.
  void read(std::filesystem::path const& folder, CheckpointFileRecord const& record) const;

 private:
  /// Neighbours in the file of which this rank has the elements.
  struct Piece {
    std::size_t begin = 0;   ///< bytes from the end of the header
    std::size_t memory = 0;  ///< where its copy lies in memory_
    TensorView value;
  };
  [[nodiscard]] std::span<std::byte> bytes() const;
  [[nodiscard]] std::span<std::byte> copy_of(Piece const& piece) const;
  void compare(std::filesystem::path const& file, std::span<SafetensorsEntry const> found) const;

  std::string what_;
  std::vector<NamedTensor> tensors_;
  std::vector<SafetensorsEntry> entries_;  // in the order of the file
  std::vector<Piece> pieces_;              // likewise
  bool divided_ = false;
  Tensor memory_;
};

}  // namespace ddp
