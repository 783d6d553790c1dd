// Parts of a tensor's elements, as addresses and as shares of ranks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace ddp {

/// The address of an element.
[[nodiscard]] inline std::byte* at(void* base, std::size_t element, std::size_t element_bytes) {
  return static_cast<std::byte*>(base) + element * element_bytes;
}
[[nodiscard]] inline std::byte const* at(void const* base, std::size_t element, std::size_t element_bytes) {
  return static_cast<std::byte const*>(base) + element * element_bytes;
}

/// memcpy() that takes null pointers for nothing, and the same place twice.
inline void copy_bytes(void* to, void const* from, std::size_t bytes) {
  if (bytes != 0 && to != from) std::memcpy(to, from, bytes);
}

struct Part {
  std::size_t begin = 0;
  std::size_t count = 0;
};

/// Rank `rank`'s part of `count` elements: as even as whole cache lines allow.
[[nodiscard]] inline Part part_of(std::size_t count, std::size_t rank, std::size_t ranks,
                                  std::size_t element_bytes) {
  constexpr std::size_t kCacheLine = 64;
  std::size_t const line = std::max<std::size_t>(kCacheLine / element_bytes, 1);
  std::size_t const lines = (count + line - 1) / line;
  auto const boundary = [&](std::size_t r) { return std::min(count, lines * r / ranks * line); };
  return {boundary(rank), boundary(rank + 1) - boundary(rank)};
}

}  // namespace ddp
