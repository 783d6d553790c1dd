// Messages put together from parts, and streams whose words depend on no locale.
#pragma once

#include <locale>
#include <sstream>
#include <string>
#include <utility>

#include "ddp/core/export.hpp"

namespace DDP_EXPORT ddp {

/// A standard stream that writes and reads numbers in one way, whatever std::locale::global() says: as in
/// Classic<std::istringstream> in(words).
template <class Stream>
class Classic : public Stream {
 public:
  /// With the arguments of `Stream`.
  template <class... Arguments>
  explicit Classic(Arguments&&... arguments) : Stream(std::forward<Arguments>(arguments)...) {
    this->imbue(std::locale::classic());
  }
};

/// text("rank ", rank, " of ", size): everything that has operator<<, in one string. The same in every
/// locale.
template <class... Parts>
[[nodiscard]] std::string text(Parts const&... parts) {
  // Not a Classic: g++ and clang++ name parts of its virtual table differently, and a program that was
  // compiled with both, such as CUDA's sources with one and the others with the other, would not link.
  std::ostringstream out;
  out.imbue(std::locale::classic());
  (out << ... << parts);
  return std::move(out).str();
}

/// Elements with `separator` between: join({0, 2}, ", ") is "0, 2".
template <class Range>
[[nodiscard]] std::string join(Range const& range, char const* separator) {
  std::ostringstream out;
  out.imbue(std::locale::classic());
  char const* between = "";
  for (auto const& element : range) {
    out << between << element;
    between = separator;
  }
  return std::move(out).str();
}

}  // namespace ddp
