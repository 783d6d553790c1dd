// The format of safetensors files: https://huggingface.co/docs/safetensors. Pure functions.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ddp/core/tensor.hpp"

namespace ddp {

/// A file is the header's length (8 bytes, little-endian), the header (JSON), and the tensors' bytes, without
/// holes.
struct SafetensorsEntry {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
  std::size_t begin = 0;  ///< bytes from the end of the header
  std::size_t end = 0;
};

/// A header longer than this is not read; other readers have the same limit.
inline constexpr std::size_t kMaxSafetensorsHeader = 100'000'000;
inline constexpr std::size_t kSafetensorsLength = 8;

/// Length and header, together a multiple of 8 bytes. Throws Error(invalid_argument) for names that are not
/// UTF-8, reserved, or stand twice.
[[nodiscard]] std::string safetensors_header(std::span<SafetensorsEntry const> entries,
                                             std::map<std::string, std::string> const& metadata);

/// The length in front of the header. Throws Error(io) if there are not 8 bytes, or it is above the limit.
[[nodiscard]] std::size_t safetensors_header_length(std::string_view bytes);

/// The entries of a header (without its length), in the order of their bytes. Throws Error(io) saying what is
/// wrong: no JSON, unknown dtypes or 8-bit floats, sizes that do not fit shapes, holes, or another size than
/// `data_bytes`.
[[nodiscard]] std::vector<SafetensorsEntry> parse_safetensors_header(std::string_view json,
                                                                     std::size_t data_bytes);

}  // namespace ddp
