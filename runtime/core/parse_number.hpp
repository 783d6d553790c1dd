// Numbers in machine text.
#pragma once

#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>

namespace ddp {

/// All of `words` as a number: no blanks, no "+", and a decimal point in every locale. nullopt if it is none,
/// or one that a Number cannot hold.
template <class Number>
[[nodiscard]] std::optional<Number> parse_number(std::string_view words) noexcept {
  Number value{};
  char const* const end = words.data() + words.size();
  auto const [stop, error] = std::from_chars(words.data(), end, value);
  return error == std::errc{} && stop == end ? std::optional(value) : std::nullopt;
}

}  // namespace ddp
