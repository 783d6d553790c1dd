// Messages put together from parts.
#pragma once

#include <sstream>
#include <string>

#include "ddp/core/export.hpp"

namespace DDP_EXPORT ddp {

/// text("rank ", rank, " of ", size): everything that has operator<<, in one string.
template <class... Parts>
[[nodiscard]] std::string text(Parts const&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return std::move(out).str();
}

/// Elements with `separator` between: join({0, 2}, ", ") is "0, 2".
template <class Range>
[[nodiscard]] std::string join(Range const& range, char const* separator) {
  std::ostringstream out;
  char const* between = "";
  for (auto const& element : range) {
    out << between << element;
    between = separator;
  }
  return std::move(out).str();
}

}  // namespace ddp
