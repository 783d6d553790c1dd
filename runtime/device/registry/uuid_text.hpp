// A device's UUID as nvidia-smi writes it.
#pragma once

#include <array>
#include <string>
#include <string_view>

namespace ddp {

/// "GPU-8c0f37a5-…" for the prefix "GPU-" and what the driver has as 16 bytes.
[[nodiscard]] inline std::string uuid_text(std::string_view prefix,
                                           std::array<unsigned char, 16> const& bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string words(prefix);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) words += '-';
    words += kDigits[bytes[i] >> 4U];
    words += kDigits[bytes[i] & 15U];
  }
  return words;
}

}  // namespace ddp
