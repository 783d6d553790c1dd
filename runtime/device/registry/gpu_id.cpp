#include "device/registry/gpu_id.hpp"

#include "core/ascii.hpp"

namespace ddp {

std::vector<std::string_view> entries_of(std::string_view list) {
  std::vector<std::string_view> entries;
  for (std::size_t begin = 0;;) {
    std::size_t const comma = list.find(',', begin);
    entries.push_back(list.substr(begin, comma - begin));
    if (comma == std::string_view::npos) return entries;
    begin = comma + 1;
  }
}

GpuId gpu_id(std::array<unsigned char, 16> const& bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string words = "GPU-";
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) words += '-';
    words += kDigits[bytes[i] >> 4U];
    words += kDigits[bytes[i] & 15U];
  }
  return {words};
}

bool is_device_id(std::string_view entry) { return entry.starts_with("GPU-") || entry.starts_with("MIG-"); }

std::optional<std::string> id_digits(std::string_view id) {
  constexpr std::size_t kDigits = 32;  // hexadecimal digits of a UUID
  std::string digits;
  for (char const c : id.substr(kIdPrefix)) {
    if (digits.size() == kDigits) break;
    if (c == '-') continue;
    char const digit = lower(c);
    if (!is_digit(digit) && (digit < 'a' || digit > 'f')) return std::nullopt;
    digits += digit;
  }
  return digits;
}

std::vector<GpuId> devices_named(std::string_view entry, std::span<GpuId const> ids) {
  std::vector<GpuId> found;
  auto const wanted = id_digits(entry);
  for (GpuId const& id : ids) {
    auto const digits = id_digits(id.value);
    if (wanted && !wanted->empty() && digits && digits->starts_with(*wanted)) found.push_back(id);
  }
  return found;
}

}  // namespace ddp
