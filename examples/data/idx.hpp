// IDX files: the format of MNIST and its successors, plain or compressed with gzip.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

namespace data {

/// Input that cannot be used. The message names the file, what was expected and what was found.
class InputError : public std::runtime_error {
 public:
  enum class Kind {
    missing,  ///< not there, or not readable
    damaged,  ///< does not hold what it must
  };
  InputError(Kind kind, std::string const& message) : std::runtime_error(message), kind_(kind) {}
  [[nodiscard]] Kind kind() const noexcept { return kind_; }

 private:
  Kind kind_;
};

/// An array of unsigned bytes, row-major.
struct Idx {
  std::vector<std::size_t> extents;
  std::vector<std::uint8_t> values;
};

/// Reads a file of unsigned bytes with `dimensions` dimensions (1 to 4): a big-endian magic 0x0000080D with D
/// dimensions, as many extents of 32 bits, and the elements. Memory grows with what is really there, not with
/// what a damaged header claims. Throws InputError.
[[nodiscard]] Idx read_idx(std::filesystem::path const& path, std::size_t dimensions);

}  // namespace data
