// What every fuzz target needs: properties that end the process when they do not hold, and bytes taken off
// the front of an input.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

/// Called by libFuzzer with each input that it makes, and by replay.cpp with each one that is kept. Any
/// exception that leaves it is a finding. Defined once in each target.
extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size);

namespace ddp::fuzz {

/// Ends the process, as a crash does, unless `holds`: libFuzzer then keeps the input.
inline void must(bool holds, std::string_view property) {
  if (holds) return;
  std::fprintf(stderr, "\nproperty violated: %.*s\n", static_cast<int>(property.size()), property.data());
  std::abort();
}

inline std::string_view as_text(std::uint8_t const* data, std::size_t size) {
  return {reinterpret_cast<char const*>(data), size};
}

/// Bytes of an input, taken off the front; zeros and empty views where none are left.
class Input {
 public:
  Input(std::uint8_t const* data, std::size_t size) : bytes_(as_text(data, size)) {}

  [[nodiscard]] bool empty() const { return bytes_.empty(); }
  std::uint8_t byte() {
    std::string_view const taken = bytes(1);
    return taken.empty() ? std::uint8_t{0} : static_cast<std::uint8_t>(taken.front());
  }
  /// At most `count` of them.
  std::string_view bytes(std::size_t count) {
    std::string_view const taken = bytes_.substr(0, count);
    bytes_.remove_prefix(taken.size());
    return taken;
  }
  std::string_view rest() { return bytes(bytes_.size()); }

 private:
  std::string_view bytes_;
};

}  // namespace ddp::fuzz
