// Checks of JSON from a file or another rank, beyond those of its parser.
#pragma once

#include <cstddef>
#include <limits>
#include <string_view>

#include "ddp/core/error.hpp"
#include "ddp/core/text.hpp"

namespace ddp {

/// Deeper than any JSON that this library writes.
inline constexpr std::size_t kMostJsonDepth = 32;

/// Throws Error(invalid_argument) if arrays and objects are nested more than kMostJsonDepth deep: the parser
/// takes any depth, but writing such a value again, as checksums need, recurses as deep.
inline void require_shallow_json(std::string_view json) {
  std::size_t depth = 0;
  bool inside_string = false;
  for (std::size_t i = 0; i < json.size(); ++i) {
    char const c = json[i];
    if (inside_string) {
      i += c == '\\' ? 1 : 0;
      inside_string = c != '"';
    } else if (c == '"') {
      inside_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kMostJsonDepth) {
        throw Error(ErrorCode::invalid_argument,
                    text("its JSON is nested deeper than ", kMostJsonDepth, " levels, at byte ", i));
      }
    } else if ((c == ']' || c == '}') && depth > 0) {
      --depth;
    }
  }
}

/// The whole number from 0 that `value` is. Throws Error(invalid_argument) for anything else: the parser's
/// own conversion takes -1, 1.5, true and also 1e300, for which C++ defines no result.
template <class Number, class Json>
[[nodiscard]] Number whole_number(std::string_view name, Json const& value) {
  if (!value.is_number_unsigned() ||
      value.template get<std::size_t>() > static_cast<std::size_t>(std::numeric_limits<Number>::max())) {
    throw Error(ErrorCode::invalid_argument,
                text("expected \"", name, "\" to be a whole number from 0 to ",
                     std::numeric_limits<Number>::max(), ", found ", value.dump()));
  }
  return value.template get<Number>();
}

}  // namespace ddp
