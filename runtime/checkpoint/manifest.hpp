// What makes files a checkpoint: its manifest, and its name. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ddp/checkpoint/checkpoint.hpp"

namespace ddp {

inline constexpr char const* kManifestFile = "manifest.json";
inline constexpr char const* kModelFile = "model.safetensors";
inline constexpr char const* kOptimizerFile = "optimizer.safetensors";
/// "rank-3.safetensors"
[[nodiscard]] std::string rank_file(int rank);

/// "000007-step-120": the number tells which is newer, even if a resumed training went back some steps.
struct CheckpointName {
  std::uint64_t number = 0;
  std::uint64_t step = 0;
  friend bool operator==(CheckpointName const&, CheckpointName const&) = default;
};
[[nodiscard]] std::string to_string(CheckpointName const& name);
/// nullopt for anything that to_string() does not make.
[[nodiscard]] std::optional<CheckpointName> parse_checkpoint_name(std::string_view name);

struct CheckpointFileRecord {
  std::string name;
  std::size_t bytes = 0;
  std::string sha256;
  friend bool operator==(CheckpointFileRecord const&, CheckpointFileRecord const&) = default;
};

struct CheckpointManifest {
  std::uint64_t number = 0;
  int ranks = 0;
  TrainingPosition position;
  std::vector<CheckpointFileRecord> files;

  [[nodiscard]] CheckpointFileRecord const* find(std::string_view file) const noexcept;
};

/// JSON with a checksum of its own.
[[nodiscard]] std::string to_json(CheckpointManifest const& manifest);
/// Throws Error(io) saying what is wrong; even if the checksum holds, for files outside of the checkpoint's
/// own folder and for files listed twice.
[[nodiscard]] CheckpointManifest parse_manifest(std::string_view json);

}  // namespace ddp
