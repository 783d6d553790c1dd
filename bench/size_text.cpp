#include "size_text.hpp"

#include <array>
#include <charconv>
#include <limits>

#include "ddp/core/error.hpp"
#include "ddp/core/text.hpp"

namespace ddp::bench {

Bytes parse_bytes(std::string_view written) {
  struct Unit {
    std::string_view name;
    std::size_t factor;
  };
  static constexpr std::array<Unit, 5> kUnits{{{"", 1},
                                               {"B", 1},
                                               {"KiB", std::size_t{1} << 10},
                                               {"MiB", std::size_t{1} << 20},
                                               {"GiB", std::size_t{1} << 30}}};
  std::size_t number = 0;
  auto const [end, failure] = std::from_chars(written.data(), written.data() + written.size(), number);
  std::string_view unit = written.substr(static_cast<std::size_t>(end - written.data()));
  if (unit.starts_with(' ')) unit.remove_prefix(1);
  if (failure == std::errc{}) {
    for (Unit const& known : kUnits) {
      if (unit == known.name && number <= std::numeric_limits<std::size_t>::max() / known.factor) {
        return Bytes{number * known.factor};
      }
    }
  }
  throw Error(
      ErrorCode::invalid_argument,
      text("\"", written, "\" is no size: expected a whole number and B, KiB, MiB or GiB, as in 64MiB"));
}

}  // namespace ddp::bench
