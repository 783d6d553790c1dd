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
#include "ddp/core/tensor.hpp"
#include "ddp/device/stream.hpp"

namespace ddp {

/// The memory is allocated once, as one piece in the order of the file, and pinned if there are GPUs.
class CheckpointSnapshot {
 public:
  /// `what` names the tensors' kind in messages: "model". With `holds` false it has no memory and only
  /// describes the tensors: their values come from another rank. Throws Error(invalid_argument).
  CheckpointSnapshot(std::string what, std::vector<NamedTensor> tensors, bool holds);

  [[nodiscard]] std::span<NamedTensor const> tensors() const noexcept { return tensors_; }
  [[nodiscard]] bool empty() const noexcept { return tensors_.empty(); }
  /// Where the copy of a tensor lies.
  [[nodiscard]] TensorView copy_of(std::size_t tensor) const;

  /// Enqueues the copies of all tensors. They are complete once the caller has waited for the stream.
  void take(Stream& stream) const;

  /// Writes file `name` into `folder`; hashing runs beside it in a thread of its own.
  [[nodiscard]] CheckpointFileRecord write(DurableFolder const& folder, std::string const& name,
                                           std::map<std::string, std::string> const& metadata,
                                           std::atomic<bool> const& cancelled) const;

  /// Fills the memory from a file. Throws Error(io) if it is not what the record says, Error(mismatch) if its
  /// tensors are others.
  void read(std::filesystem::path const& folder, CheckpointFileRecord const& record) const;

 private:
  [[nodiscard]] std::span<std::byte> bytes() const;
  void compare(std::filesystem::path const& file, std::span<SafetensorsEntry const> found) const;

  std::string what_;
  std::vector<NamedTensor> tensors_;
  std::vector<SafetensorsEntry> entries_;  // in step with tensors_
  Tensor memory_;
};

}  // namespace ddp
