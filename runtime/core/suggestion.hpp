// "did you mean …?"
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace ddp {

/// Levenshtein's distance: insertions, deletions and replacements of one character that turn `a` into `b`.
[[nodiscard]] std::size_t edit_distance(std::string_view a, std::string_view b);

/// The word of `known` that is nearest to `given`, if it is near enough to be what was meant: at most a third
/// of the letters differ, or one is the beginning of the other.
[[nodiscard]] std::optional<std::string> nearest(std::string_view given, std::span<std::string const> known);

}  // namespace ddp
